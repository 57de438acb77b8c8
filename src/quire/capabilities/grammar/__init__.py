"""Structured text: from what a caller asks of it to the tokens that may come next."""

from quire.capabilities.grammar.boxed import BoxedRules
from quire.capabilities.grammar.compiler import GrammarCompiler
from quire.capabilities.grammar.grammars import Grammars
from quire.capabilities.grammar.guide import Guide, Rules

__all__ = ["BoxedRules", "GrammarCompiler", "Grammars", "Guide", "Rules"]
