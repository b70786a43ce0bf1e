"""The field's own protocols: people held out, or each person's last ratings."""
