"""What a client can shape, written by rule and tried in child processes: ``make fuzz``.

``schemas``, ``expressions``, ``grammars``, ``tags``, ``templates`` and ``calls`` each know a
language. They draw choices (``draws``), of which a ``case`` is made; ``attempt`` does with it what
a server does, ``child`` does that in a process of its own and measures it, and ``shrink`` looks for
the smallest case that fails alike. ``corpus`` holds what has failed once.
"""
