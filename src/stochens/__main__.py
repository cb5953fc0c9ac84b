"""`python -m stochens` is `stochens`."""

from stochens.cli import main

if __name__ == "__main__":
    main()
