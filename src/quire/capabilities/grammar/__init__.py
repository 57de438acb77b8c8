"""Structured text: from what a caller asks of it to the tokens that may come next."""

from quire.capabilities.grammar.compiler import GrammarCompiler
from quire.capabilities.grammar.guide import Guide, Rules
from quire.capabilities.grammar.masks import Place, fill_masks

__all__ = ["GrammarCompiler", "Guide", "Place", "Rules", "fill_masks"]
