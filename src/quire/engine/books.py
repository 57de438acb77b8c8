"""Whether memory's books are right, said where they are not."""

from __future__ import annotations

import logging

from quire.core.scheduling import Scheduler

logger = logging.getLogger(__name__)


def count_faults(scheduler: Scheduler) -> int:
    """Of the KV pool's books, while nobody asks for anything; they are put right, and logged."""
    try:
        faults = scheduler.audit()
    except Exception:  # whatever it is, requests have been served until now
        logger.exception("the KV pool's books cannot be audited")
        return 1
    for fault in faults:
        logger.error("the KV pool's books were wrong, and have been put right: %s", fault)
    return len(faults)
