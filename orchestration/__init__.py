"""The control plane: it joins the other packages, and it is the only one that uses Dagster."""
