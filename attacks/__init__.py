"""Attacks on a real ``quire serve``, and what they do to everybody else: ``make attack``.

``catalogue`` lists the attacks, ``target`` is the server as an attacker sees it, ``watch`` asks for
its health and reads an innocent stream meanwhile, ``storm`` runs one after the other, ``report``
says what came of it.
"""
