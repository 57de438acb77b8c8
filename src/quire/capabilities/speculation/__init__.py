"""What texts may go on with, guessed so that one step can verify several tokens."""

from quire.capabilities.speculation.chain import speculation_of
from quire.capabilities.speculation.proposal import Drafter, Proposal
from quire.capabilities.speculation.speculation import Speculation

__all__ = ["Drafter", "Proposal", "Speculation", "speculation_of"]
