def write_page(work, page):
    pass
