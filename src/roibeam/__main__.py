"""`python -m roibeam` is the command `roibeam`."""

from roibeam.pipelines.cli.main import main

if __name__ == "__main__":
    main()
