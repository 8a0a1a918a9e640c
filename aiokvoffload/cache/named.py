"""How named tuples are made where a call of Python counts."""

make_named = tuple.__new__
"""`make_named(Kind, (one, two))` is `Kind(one, two)`, but for the function of Python that a class has for it.

It takes half the time, and a microsecond less where caches are cold, as they are when a loop comes to a manager's call;
and nobody checks that there are as many values as fields. For calls that every request makes.
"""
