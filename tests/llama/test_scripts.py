"""Texts in many scripts have the tokens that the reference tokenizer of BERT's models gives them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tokenizers import AddedToken, BertWordPieceTokenizer

from openai_cpu_server.llama.gguf.header import GgufHeader
from openai_cpu_server.llama.model.vocabulary import Vocabulary

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
def vocabulary(minilm: Path) -> Iterator[Vocabulary]:
    found = Vocabulary.open(minilm)
    yield found
    found.close()


@pytest.fixture(scope="module")
def reference(minilm: Path) -> BertWordPieceTokenizer:
    """Of the same pieces, by Hugging Face."""
    texts = GgufHeader(minilm).get_strings("tokenizer.ggml.tokens")
    pieces = {_as_bert_writes(text): token for token, text in texts.items()}
    names = [AddedToken(name, special=True) for name in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")]
    found = BertWordPieceTokenizer(pieces, lowercase=True)
    found.add_special_tokens(names)
    return found


def _as_bert_writes(piece: str) -> str:
    """What begins a word as it is, what goes on with two signs in front; GGUF marks the beginnings."""
    if piece.startswith("\u2581"):
        return piece[1:]
    return piece if piece.startswith("[") and piece.endswith("]") else f"##{piece}"


@pytest.mark.native
@pytest.mark.parametrize("parse_special", [False, True])
@pytest.mark.parametrize("language", LANGUAGES)
def test_a_text_has_the_tokens_of_the_reference(
    vocabulary: Vocabulary, reference: BertWordPieceTokenizer, language: str, parse_special: bool
) -> None:
    text = LANGUAGES[language]
    for each in (text, text.upper(), f"{text} {text.lower()}"):
        found = vocabulary.encode(each, add_special=True, parse_special=parse_special)
        assert found == reference.encode(each).ids


@pytest.mark.native
def test_control_tokens_are_found_between_words_of_any_script(
    vocabulary: Vocabulary, reference: BertWordPieceTokenizer
) -> None:
    text = "안녕 [SEP] नमस्ते[MASK] 世界[CLS]" + "z" * 200
    assert vocabulary.encode(text, add_special=True, parse_special=True) == reference.encode(text).ids
    text_alone = vocabulary.encode(text, add_special=False, parse_special=False)
    assert not {101, 102, 103} & set(text_alone)
