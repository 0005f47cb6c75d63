"""Commands for those who change the course.

refresh  run every notebook in a fresh kernel and store what it gives
"""
