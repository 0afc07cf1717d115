"""Publishing a version as a whole or not at all, and looking after the versions that are published.

What a store's folder holds besides its versions:

- ``CURRENT``: the name of the live version. It is replaced by rename, last of all.
- ``LOCK``: held (flock) by the one writer; says who that is. It also remembers the highest version number that
  `omstore gc` deleted, so that the number of a published version never comes to mean other contents. Readers
  never look at it.
- ``.staging-PID-RANDOM``: what a writer is building, or what is being deleted. The lock's holder removes any
  that it finds, for whoever made it is dead.

Killed between the renaming of the version and that of ``CURRENT``, a writer leaves a version that is whole
but was never published. Its staging folder, which is removed last, says so in the file ``renamed``: the next
writer (or `omstore gc`) removes the version unless ``CURRENT`` names it. Its number is free again: nobody who
reads through ``CURRENT`` saw it.
"""
