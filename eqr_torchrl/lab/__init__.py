"""The laboratory: simulators, runs, evaluation, diagnostics, comparison. An application around the method.

It may change between minor versions; the method (everything outside ``lab``) is what other code can rely on.
"""
