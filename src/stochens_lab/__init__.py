"""The laboratory of stochens: the paper's experiments, image data, report pages, and the command
`stochens`. It needs the extra: `pip install 'stochens[lab]'`.

It stands on the library, which never imports it.
"""
