"""From rows to the best row encoding: coordinates, factoring found, attributes hoisted, forecasts, choice, proof."""
