"""Structured text: from what a caller asks of it to the tokens that may come next."""

from quire.grammar.compiler import GrammarCompiler
from quire.grammar.guide import Guide, Rules
from quire.grammar.masks import Place, fill_masks

__all__ = ["GrammarCompiler", "Guide", "Place", "Rules", "fill_masks"]
