"""What stands beside a file of predictions: its card, and a page of the best and the worst of them.

Read prediction_card.py first, then told_rows.py, which chooses the rows, and prediction_page.py, which shows them.
"""
