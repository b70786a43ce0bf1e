"""Who uses a model: the page that computes lists in the browser, and an endpoint for services."""
