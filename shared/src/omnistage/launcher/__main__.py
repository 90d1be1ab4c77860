"""`python -m omnistage.launcher`: the command `omnistage`."""

from omnistage.launcher.cli import main

if __name__ == "__main__":
    main()
