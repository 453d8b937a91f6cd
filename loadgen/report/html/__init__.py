"""A run as one HTML file that opens without a network, on a screen and on paper.

`document` puts it together, `sections` holds the tables, `charts` and `timeline` the figures; `style` is what the
figures have in common, `markup` writes the tags around texts. `report.css` and `report.js` go into the file whole.
"""
