"""The text of an answer as the official VQA evaluation compares it: signs, number words, articles, contractions.

Source: GT-Vision-Lab/VQA vqaEval.py. Its published numbers are those of Python 2, whose `\\d` knows only 0-9, and whose
lower case and white space are those of older Unicode tables; so are ours.
"""

from __future__ import annotations

import re
from functools import lru_cache

_SIGNS = ';/[]"{}()=+\\_-><@`,?!'
_COMMA_IN_NUMBER = re.compile("[0-9],[0-9]")
_PERIOD = re.compile("[.](?![0-9])")
MOST_PERIODS = 32  # the official code passes re.UNICODE, which is 32, where the count belongs
_NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_NUMBER_OF_WORD = {"none": "0"} | {word: str(number) for number, word in enumerate(_NUMBERS)}
_ARTICLES = ("a", "an", "the")
_SPACES = "".join(letter for letter in map(chr, range(0x3001)) if letter.isspace()) + "\u180e"  # the last in Python 2
_WORDS = re.compile(f"[^{re.escape(_SPACES)}]+")

# Words that are restored from a spelling without any apostrophe. Not every contraction is in the official list.
_FROM_PLAIN = """
ain't aren't can't could've couldn't didn't doesn't don't hadn't hasn't haven't he'd he's how'd how'll how's
isn't it'd it'll ma'am mightn't might've mustn't must've needn't not've o'clock oughtn't shan't should've
shouldn't somebody'll somebody's someone'd someone'll someone's something'd something'll that's there'd there're
there's they'd they'll they're they've 'twas wasn't we've weren't what'll what're what's what've when's where'd
where's where've who'd who'll who's who've why'll why're why's won't would've wouldn't y'all you'd you'll you're
you've
"""
# Those with other wrong spellings, and "somebodyd", where the official list has the pair the wrong way round.
_FROM_OTHERS = {
    "couldn't've": "couldn'tve couldnt've", "hadn't've": "hadnt've hadn'tve", "he'd've": "hed've he'dve",
    "it'd've": "itd've it'dve", "mightn't've": "mightnt've mightn'tve", "'ow's'at": "ow's'at 'ows'at 'ow'sat",
    "she'd've": "shed've she'dve", "shouldn't've": "shouldnt've shouldn'tve", "somebodyd": "somebody'd",
    "somebody'd've": "somebodyd've somebody'dve", "someone'd've": "someoned've someone'dve",
    "something'd've": "somethingd've something'dve", "there'd've": "thered've there'dve",
    "they'd've": "theyd've they'dve", "we'd've": "wed've we'dve", "who'd've": "whod've who'dve",
    "wouldn't've": "wouldnt've wouldn'tve", "y'all'll": "yall'll y'allll",
    "y'all'd've": "yall'd've y'alld've y'all'dve", "you'd've": "youd've you'dve",
}  # fmt: skip
_CONTRACTIONS = {word.replace("'", ""): word for word in _FROM_PLAIN.split()} | {
    wrong: right for right, wrongs in _FROM_OTHERS.items() for wrong in wrongs.split()
}


def without_line_ends(text: str) -> str:
    """Line ends and tabs as spaces, none at the ends: done to every answer, before answers are compared."""
    return text.replace("\n", " ").replace("\t", " ").strip(_SPACES)


def without_signs(text: str) -> str:
    """Each sign dropped where a space is beside one of its kind in `text`, or a comma between digits anywhere in it;
    else a space. Periods dropped, unless a digit follows."""
    has_comma_in_number = _COMMA_IN_NUMBER.search(text) is not None
    found = text
    for sign in _SIGNS:
        is_dropped = has_comma_in_number or f"{sign} " in text or f" {sign}" in text
        found = found.replace(sign, "" if is_dropped else " ")
    return _PERIOD.sub("", found, count=MOST_PERIODS)


def plain_words(text: str) -> str:
    """Lower case, number words as digits, no articles, contractions with their apostrophes, single spaces."""
    words = [_NUMBER_OF_WORD.get(word, word) for word in _WORDS.findall(_lower(text))]
    return " ".join(_CONTRACTIONS.get(word, word) for word in words if word not in _ARTICLES)


@lru_cache(maxsize=2**16)  # people of one data set say the same some hundred times
def plain_answer(text: str) -> str:
    """`without_signs`, then `plain_words`: how answers are compared when the annotators do not all agree."""
    return plain_words(without_signs(text))


def _lower(text: str) -> str:
    """Letter by letter, one for one: a last sigma stays a sigma, a dotted capital I becomes a plain i."""
    return text.lower() if text.isascii() else "".join(letter.lower()[0] for letter in text)
