"""The reference implementation, run beside ours to settle questions and to compare.

``server`` installs Cloudflare's own ``agents/sessions`` from npm into a folder and serves it with
workerd; ``client`` speaks to it; ``record`` writes a scenario's expected answers from it; ``diff``
drives it and ours with the same generated steps. Nothing here is needed to run the product.
"""
