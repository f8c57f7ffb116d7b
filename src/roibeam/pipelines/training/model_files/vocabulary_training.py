"""WordPiece vocabulary trained on captions, by the tokenizers package alone: neither transformers nor torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

SPECIAL_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
TRAINED_VOCABULARY_SIZE = 10_000
TRAINED_MIN_FREQUENCY = 2


def made_vocabulary(captions: Iterable[str]) -> dict[str, int]:
    """Piece -> id: at most 10,000 lower-case pieces that occur twice or more. The same captions in any order give the
    same vocabulary."""
    counts = Counter(word for caption in captions for word in _words(caption))
    if not counts:
        raise ValueError("tokenizer 'captions': there are no captions to make a vocabulary from")
    # The trainer numbers the characters inside words in the order of a randomly seeded hash map, and breaks ties by
    # number: two runs give two vocabularies. Listed beforehand as special tokens, these characters have fixed numbers.
    inner = sorted({f"##{character}" for word in counts for character in word[1:]})
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    add_bert_rules(tokenizer, lowercase=True)
    trainer = trainers.WordPieceTrainer(
        vocab_size=TRAINED_VOCABULARY_SIZE,
        min_frequency=TRAINED_MIN_FREQUENCY,
        limit_alphabet=len(inner) + len(counts),
        special_tokens=[*SPECIAL_TOKENS, *inner],
        show_progress=False,
    )
    tokenizer.train_from_iterator((word for word in sorted(counts) for _ in range(counts[word])), trainer)
    # Only the vocabulary is taken over: in the tokenizer just trained the inner characters would stay special tokens.
    return tokenizer.get_vocab()


def add_bert_rules(tokenizer: Tokenizer, *, lowercase: bool) -> None:
    """Adds BERT's rules for cutting a text into words, and for joining pieces."""
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()


def _words(text: str) -> list[str]:
    """The words of `text` by the BERT rules for lower-case vocabularies."""
    normal = normalizers.BertNormalizer(lowercase=True).normalize_str(text)
    return [word for word, _ in pre_tokenizers.BertPreTokenizer().pre_tokenize_str(normal)]
