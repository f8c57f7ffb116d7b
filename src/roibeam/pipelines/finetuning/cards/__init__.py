"""What stands beside a file of predictions: its card, and a page of the best and the worst of them.

prediction_card.py: what the predictions were made with. told_rows.py: which of them are shown. prediction_page.py: how.
"""
