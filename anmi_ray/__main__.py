"""`python -m anmi_ray` is the `anmi` command."""

from anmi_ray.cli import main

if __name__ == "__main__":
    main()
