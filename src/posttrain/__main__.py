"""`python -m posttrain` is `posttrain`."""

from posttrain.cli.main import main

if __name__ == "__main__":
    main()
