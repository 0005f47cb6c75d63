"""One explorer for each notebook: sliders, and a picture that follows them.

canvas         pictures in which only what changes is drawn again
explorer       controls above such a picture
loop_mean      01, which past does step t average?
tril_matmul    02, how does one entry of a matrix product come about?
softmax_mask   03, what do softmax, temperature and mask make of scores?
positional     04, what do places look like, how alike are they, and what do they change?
qkv_head       05, what happens inside one head?
transformer    06, what does a trained model look at, and what does it expect next?
fast_heads     07, what does the next token cost?
"""
