"""`python -m stochens.cli`."""

from stochens.cli import main

if __name__ == "__main__":
    main()
