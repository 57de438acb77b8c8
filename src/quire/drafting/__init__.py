"""What texts may go on with, guessed so that one step can verify several tokens."""

from quire.drafting.chain import speculation_of
from quire.drafting.proposal import Drafter, Proposal
from quire.drafting.speculation import Speculation

__all__ = ["Drafter", "Proposal", "Speculation", "speculation_of"]
