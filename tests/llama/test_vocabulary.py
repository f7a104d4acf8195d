"""Text to tokens and back, in many scripts with the tokens of BERT's reference tokenizer."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tokenizers import AddedToken, BertWordPieceTokenizer

from openai_cpu_server.contract.model_info import SequenceMarks
from openai_cpu_server.errors import InvalidRequest
from openai_cpu_server.llama.gguf.header import GgufHeader
from openai_cpu_server.llama.model.vocabulary import Vocabulary
from tests.llama.odd_models import rewritten
from tests.tiny_bert import CLS, SEP, TOKENS, TinyBert
from tests.tiny_model import tiny_model_path

TEXTS = [
    "",
    "Hello world",
    "  two  spaces ",
    "Grüße, 世界 👋🏽",
    "nul \0 inside",
    "line\n\ttab",
    "<|im_start|>",
]


@pytest.mark.parametrize("text", [*TEXTS, "All work and no play. " * 50_000], ids=lambda text: text[:20])
def test_decoding_restores_the_text(vocabulary: Vocabulary, text: str) -> None:
    tokens = vocabulary.encode(text, add_special=False, parse_special=False)
    assert vocabulary.decode(tokens) == text
    assert b"".join(map(vocabulary.piece, tokens)) == text.encode()


def test_special_tokens_are_added_and_parsed_on_request(vocabulary: Vocabulary) -> None:
    assert vocabulary.adds_bos
    assert vocabulary.marks == SequenceMarks(begin=(vocabulary.bos,))
    assert vocabulary.encode("", add_special=True, parse_special=False) == [vocabulary.bos]
    (end,) = vocabulary.encode("<|im_end|>", add_special=False, parse_special=True)
    assert end in vocabulary.end_tokens
    assert len(vocabulary.encode("<|im_end|>", add_special=False, parse_special=False)) > 1


def test_control_tokens_have_text_on_request_only(vocabulary: Vocabulary) -> None:
    tokens = vocabulary.encode("a<|im_end|>", add_special=True, parse_special=True)
    assert vocabulary.decode(tokens) == "a"
    assert vocabulary.decode(tokens, special=True) == "<s>a<|im_end|>"
    assert [vocabulary.piece(token) for token in vocabulary.end_tokens] == [b"", b""]
    assert (vocabulary.bos_text, vocabulary.eos_text) == ("<s>", "<|im_end|>")


def test_each_end_of_a_turn_is_at_least_one_token(vocabulary: Vocabulary) -> None:
    text, least = 100 * "a<|im_end|>", vocabulary.least_tokens(100 * "a<|im_end|>")
    encoded = [vocabulary.encode(text, add_special=False, parse_special=special) for special in (False, True)]
    assert 100 <= least <= min(map(len, encoded))


def test_torn_characters_and_lone_surrogates_are_replaced(vocabulary: Vocabulary) -> None:
    tokens = vocabulary.encode("世", add_special=False, parse_special=False)
    assert [vocabulary.piece(token) for token in tokens] == [b"\xe4", b"\xb8", b"\x96"]
    assert vocabulary.decode(tokens[:2]) == "\ufffd"
    tokens = vocabulary.encode("a\ud83d b \ud83d\ude00", add_special=False, parse_special=False)
    assert vocabulary.decode(tokens) == "a\ufffd b 😀"


def test_every_token_has_a_piece_and_nothing_else_has(vocabulary: Vocabulary) -> None:
    assert all(vocabulary.piece(token, special=True) for token in range(vocabulary.vocab_size))
    for token in (-1, vocabulary.vocab_size, 2**40):
        with pytest.raises(InvalidRequest, match=f"{token} is not a token"):
            vocabulary.piece(token)


def test_many_threads_at_once(vocabulary: Vocabulary) -> None:
    texts = [f"{text} {number}" for number in range(40) for text in TEXTS]

    def round_trip(text: str) -> str:
        return vocabulary.decode(vocabulary.encode(text, add_special=False, parse_special=False))

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(round_trip, texts)) == texts


def test_templates_come_from_the_file(tiny: Path, tmp_path: Path) -> None:
    changes: dict[str, object] = {
        "tokenizer.chat_template": "{{ plain }}",
        "tokenizer.chat_template.tool_use": "{{ tools }}",
    }
    with Vocabulary.open(rewritten(tiny, tmp_path / "named.gguf", changes)) as vocabulary:
        assert vocabulary.chat_template == "{{ plain }}"
        assert vocabulary.named_chat_template("tool_use") == "{{ tools }}"
        assert vocabulary.named_chat_template("other") is None


def test_a_model_has_infill_tokens_only_if_it_has_all_three(vocabulary: Vocabulary) -> None:
    assert vocabulary.fim is None
    with Vocabulary.open(tiny_model_path(fim=True)) as with_infill:
        fim = with_infill.fim
        assert len({fim.prefix, fim.suffix, fim.middle}) == 3
        assert all(with_infill.piece(token) == b"" for token in (fim.prefix, fim.suffix, fim.middle))


def test_a_closed_vocabulary_is_not_used(tiny: Path) -> None:
    vocabulary = Vocabulary.open(tiny)
    vocabulary.close()
    vocabulary.close()
    with pytest.raises(AssertionError, match="closed"):
        vocabulary.encode("a", add_special=False, parse_special=False)


@pytest.mark.parametrize(
    ("added", "between"),
    [
        ({}, (SEP,)),
        ({"eos": True, "sep": False}, (SEP,)),
        ({"bos": True, "eos": True, "sep": True}, (SEP, SEP)),
    ],
)
def test_marks_of_an_encoder(tmp_path: Path, added: dict[str, bool], between: tuple[int, ...]) -> None:
    named = {f"tokenizer.ggml.add_{name}_token": added.get(name) for name in ("bos", "eos", "sep")}
    bert = TinyBert().write(tmp_path / "a.gguf")
    path = rewritten(bert, tmp_path / "b.gguf", {"general.architecture": "bert", **named})
    with Vocabulary.open(path) as vocabulary:
        words = [TOKENS.index("the"), TOKENS.index("sun")]
        assert vocabulary.encode("the sun", add_special=True, parse_special=True) == [CLS, *words, SEP]
        assert vocabulary.marks == SequenceMarks(begin=(CLS,), between=between, end=(SEP,))
        assert vocabulary.named_chat_template("rerank") is None


# The first sentence of the Universal Declaration of Human Rights.
LANGUAGES = {
    "Polish": "Wszyscy ludzie rodzą się wolni i równi pod względem swej godności i swych praw.",
    "Icelandic": "Hver maður er borinn frjáls og jafn öðrum að virðingu og réttindum.",
    "Turkish": "Bütün insanlar hür, haysiyet ve haklar bakımından eşit doğarlar. İIıi ĞğŞş",
    "Vietnamese": "Tất cả mọi người sinh ra đều được tự do và bình đẳng về nhân phẩm và quyền lợi.",
    "Yoruba": "Gbogbo ènìyàn ni a bí ní òmìnira; iyì àti ẹ̀tọ́ kọ̀ọ̀kan sì dọ́gba.",
    "Russian": "Все люди рождаются свободными и равными в своем достоинстве и правах. Ёлки, йод",
    "Greek": "Όλοι οι άνθρωποι γεννιούνται ελεύθεροι και ίσοι στην αξιοπρέπεια και τα δικαιώματα. ΟΔΥΣΣΕΥΣ",
    "Hebrew": "כל בני האדם נולדו בני חורין ושווים בערכם ובזכויותיהם. שָׁלוֹם",
    "Arabic": "يولد جميع الناس أحرارًا متساوين في الكرامة والحقوق. مُحَمَّد",
    "Persian": "تمام افراد بشر آزاد به دنیا می‌آیند و از لحاظ حیثیت و حقوق با هم برابرند.",
    "Hindi": "सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता और समानता प्राप्त है।",
    "Bengali": "সমস্ত মানুষ স্বাধীনভাবে সমান মর্যাদা এবং অধিকার নিয়ে জন্মগ্রহণ করে।",
    "Tamil": "மனிதப் பிறிவியினர் சகலரும் சுதந்திரமாகவே பிறக்கின்றனர்.",
    "Telugu": "ప్రతిపత్తిస్వత్వముల విషయమున మానవులెల్లరును జన్మతః స్వతంత్రులును సమానులును నగుదురు.",
    "Gujarati": "પ્રતિષ્ઠા અને અધિકારોની દૃષ્ટિએ સર્વ માનવો જન્મથી સ્વતંત્ર અને સમાન હોય છે.",
    "Punjabi": "ਸਾਰਾ ਮਨੁੱਖੀ ਪਰਿਵਾਰ ਆਪਣੀ ਮਹਿਮਾ, ਸ਼ਾਨ ਅਤੇ ਹੱਕਾਂ ਦੇ ਪੱਖੋਂ ਜਨਮ ਤੋਂ ਹੀ ਆਜ਼ਾਦ ਹੈ।",
    "Sinhala": "සියලු මනුෂ්‍යයෝ නිදහස්ව උපත ලබා ඇත.",
    "Thai": "มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์และสิทธิ",
    "Lao": "ມະນຸດທຸກຄົນເກີດມາມີກຽດສັກສີ ສິດທິ ເສລີພາບ ແລະຄວາມສະເໝີພາບເທົ່າທຽມກັນ.",
    "Khmer": "មនុស្សទាំងអស់ កើតមកមានសេរីភាព និងសមភាព ក្នុងផ្នែកសេចក្ដីថ្លៃថ្នូរនិងសិទ្ធិ។",
    "Burmese": "လူတိုင်းသည် တူညီ လွတ်လပ်သော ဂုဏ်သိက္ခာဖြင့် လည်းကောင်း မွေးဖွားလာသူများ ဖြစ်သည်။",
    "Tibetan": "འགྲོ་བ་མིའི་རིགས་རྒྱུད་ཡོངས་ལ་སྐྱེས་ཙམ་ཉིད་ནས་ཆེ་མཐོངས་དང༌།",
    "Georgian": "ყველა ადამიანი იბადება თავისუფალი და თანასწორი თავისი ღირსებითა და უფლებებით.",
    "Armenian": "Բոլոր մարդիկ ծնվում են ազատ ու հավասար՝ իրենց արժանապատվությամբ և իրավունքներով։",
    "Amharic": "የሰው ልጅ ሁሉ ሲወለድ ነጻና በክብርና በመብትም እኩልነት ያለው ነው።",
    "Chinese": "人人生而自由，在尊严和权利上一律平等。他们赋有理性和良心。",
    "Japanese": "すべての人間は、生れながらにして自由であり、かつ、尊厳と権利とについて平等である。ガギグ",
    "Korean": "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다.",
    "pieces": "Hello, unaffable Café naïve Zürich İstanbul 北京 한국어 हिन्दी 🙂 \x00x\u200b",
    "none": "",
    "signs": "½ ¼ ﬁne №1 — “quotes” … €100 50% a_b c++ #tag @name 3.14 e=mc² ™ ° ± × ÷ ← → ≠ ∞ ☃ ♥",
    "emoji": "👩‍👩‍👧 🇩🇪 👍🏽 ❤️ ok😀ok",
    "odd spaces": "a\u00a0b\u2003c\u200bd\u200ce\ufefff\tg\rh\u2028i \u3000 j\x00k\x7fl\u00adm",
    "a long word": f"short {'x' * 100} {'y' * 101} {'ж' * 150} end",
}


@pytest.fixture(scope="module")
def bert_vocabulary(minilm: Path) -> Iterator[Vocabulary]:
    found = Vocabulary.open(minilm)
    yield found
    found.close()


@pytest.fixture(scope="module")
def reference(minilm: Path) -> BertWordPieceTokenizer:
    texts = GgufHeader(minilm).get_strings("tokenizer.ggml.tokens")
    pieces = {_bert_piece(text): token for token, text in texts.items()}
    names = [AddedToken(name, special=True) for name in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")]
    found = BertWordPieceTokenizer(pieces, lowercase=True)
    found.add_special_tokens(names)
    return found


def _bert_piece(piece: str) -> str:
    """GGUF marks the pieces at the start of a word, BERT marks the other ones by `##`."""
    if piece.startswith("\u2581"):
        return piece[1:]
    return piece if piece.startswith("[") and piece.endswith("]") else f"##{piece}"


@pytest.mark.parametrize("parse_special", [False, True])
@pytest.mark.parametrize("language", LANGUAGES)
def test_a_text_has_the_tokens_of_the_reference(
    bert_vocabulary: Vocabulary, reference: BertWordPieceTokenizer, language: str, parse_special: bool
) -> None:
    text = LANGUAGES[language]
    for each in (text, text.upper(), f"{text} {text.lower()}"):
        found = bert_vocabulary.encode(each, add_special=True, parse_special=parse_special)
        assert found == reference.encode(each).ids


def test_control_tokens_between_words(bert_vocabulary: Vocabulary, reference: BertWordPieceTokenizer) -> None:
    text = "안녕 [SEP] नमस्ते[MASK] 世界[CLS]" + "z" * 200
    assert bert_vocabulary.encode(text, add_special=True, parse_special=True) == reference.encode(text).ids
    text_alone = bert_vocabulary.encode(text, add_special=False, parse_special=False)
    assert not {101, 102, 103} & set(text_alone)
