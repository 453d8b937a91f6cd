"""A run as one HTML file that opens without a network, on a screen and on paper.

`document` puts it together, `sections` holds the tables and writes the tags around texts, `charts` and `timeline` draw
the figures. `report.css` and `report.js` go into the file whole.
"""
