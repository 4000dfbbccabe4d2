"""`python -m minutebook` is the command line."""

from minutebook.cli import main

main()
