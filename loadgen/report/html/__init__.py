"""A run as one HTML file that opens without a network, on a screen and on paper.

`document` puts it together, `sections` holds the tables, `charts` and `timeline` the figures; `look` is what the
figures have in common, `markup` the only place that writes tags. `report.css` and `report.js` go into the file whole.
"""
