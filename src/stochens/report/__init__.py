"""One HTML page on what a model predicts. It needs the extra: `pip install 'stochens[report]'`."""
