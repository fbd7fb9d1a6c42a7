"""What keeps the ranks of a job from starting or exchanging, and what to do about it.

``snapshot``   what a process finds around itself, as values; ``looking`` takes it, with ``network``
               and ``gpus``
``checks``     what a snapshot says is wrong: pure functions to ``findings``
``logs``       what a training log says is wrong, by the texts of ``known_texts.json``
``selftest``   two real ranks on this host; ``pair`` is one of them, ``trial`` what they do
``together``   all ranks of a launched job, in one report, once they meet (``opening``); ``rank`` is
               what each of them tells
``screen``     all of that as lines for people; ``wording`` are its facts
"""
