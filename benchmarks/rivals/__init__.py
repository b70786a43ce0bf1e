"""How far our recommender is ahead of published private ones, or behind them."""
