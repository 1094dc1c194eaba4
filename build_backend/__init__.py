"""Build the patched ray wheel: a PEP 517 backend that needs no compiler.

The wheel of the pinned Ray release is fetched from the package index and checked
against its hash, the patches of ``patches/`` are applied to it and the files of
``python/`` are added. All other members are copied as the compressed bytes that they
are, so a build takes about a second beyond the download.

Frontends call ``hooks`` by way of ``setup.py``; ``ci/`` imports the other modules.
"""
