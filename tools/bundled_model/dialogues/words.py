"""The words that tools and values are made from, divided into those for training and those for evaluation.

A word's checksum decides its side for good. Made-up words have no list: they are composed of syllables or of parts of
real words, and their side is decided in the same way. Knows nothing of tools or dialogues.
"""

# ruff: noqa: SIM905  (long lists of words read better as text)

import random
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

# One word in so many is kept for evaluation.
_HELD_OUT_ONE_IN = 8
# Too common in the names of real tools to be kept from training.
_NEVER_HELD_OUT = frozenset({"get", "list", "update", "change", "remove", "run", "move", "file", "order"})

VERBS = (
    "get find fetch list show check read search create make add insert write build delete remove drop clear update set "
    "change edit rename move copy send post share publish start stop run launch pause resume cancel book reserve order "
    "buy sell pay count measure compare sort filter merge split join convert translate compute calculate estimate plan "
    "schedule track watch monitor scan inspect test verify validate lock unlock open close enable disable print export "
    "import upload download install encode decode compress render draw paint play record call notify assign archive "
    "restore rotate resize tag label rate rank review approve reject invite summarize load save query locate trace "
    "refresh reset submit collect release deploy attach detach mark flag pick select group sync backup"
).split()

# Verbs of tools that only tell something: these are asked as questions too.
ASKING_VERBS = frozenset({"get", "fetch", "find", "show", "check", "read", "search", "list", "query", "locate", "look"})

# Verbs that mean the same to a user. Only used where the noun alone tells which tool is meant.
SYNONYMS = (
    ("get", "fetch", "find", "show", "look up", "give me", "retrieve"),
    ("create", "make", "add", "set up"),
    ("delete", "remove", "drop", "erase"),
    ("update", "change", "edit", "modify"),
    ("send", "post", "submit"),
    ("start", "launch", "run", "begin"),
    ("stop", "cancel", "end"),
    ("search", "look for", "find"),
    ("check", "inspect", "verify", "look at"),
    ("compute", "calculate", "work out"),
    ("book", "reserve", "order"),
)

NOUNS = (
    "invoice order customer ticket account payment report document file folder image photo video song album playlist "
    "movie book chapter page note message email letter contact meeting event calendar task project team member user "
    "group channel post comment review rating product price stock warehouse shipment parcel package route trip flight "
    "hotel room table seat train station bus stop car engine tire battery charger sensor camera microphone speaker "
    "lamp light door window lock alarm heater fan pump valve pipe tank filter boiler oven fridge freezer kettle "
    "toaster recipe meal menu dish ingredient garden plant flower tree seed soil harvest field farm barn animal horse "
    "cow sheep goat chicken dog cat bird fish bee forest river lake mountain valley island beach harbour ship boat "
    "ferry bridge tunnel road street map compass weather forecast storm rain snow wind temperature humidity pressure "
    "tide wave satellite planet star galaxy telescope rocket launch orbit server cluster database query index backup "
    "snapshot log metric dashboard alert incident pipeline build release branch commit issue patch test package "
    "module function variable script container image network router firewall packet domain certificate password token "
    "session cookie key secret license contract policy claim insurance loan mortgage budget salary expense receipt "
    "tax refund coupon discount gift voucher auction bid lottery game player score level match tournament league "
    "coach stadium ball racket bicycle helmet tent rope ladder hammer drill saw nail screw bolt wrench brush paint "
    "canvas statue museum gallery theatre concert ticket stage costume mask puppet toy robot drone printer scanner "
    "laptop phone tablet keyboard monitor cable antenna radio signal frequency channel podcast newsletter article "
    "magazine library shelf archive dictionary lesson course exam grade school student teacher class lecture thesis "
    "diploma laboratory sample molecule atom crystal mineral fossil volcano glacier desert cave reef coral whale "
    "dolphin turtle eagle owl fox wolf bear rabbit squirrel butterfly spider ant vaccine medicine prescription "
    "patient doctor nurse clinic hospital ambulance appointment symptom allergy diet exercise workout yoga bandage "
    "blood heart lung bone tooth passport visa luggage suitcase wallet coin bank vault safe mirror carpet curtain "
    "pillow blanket mattress sofa chair desk drawer cupboard basket bottle cup plate spoon fork knife pan bread "
    "cheese butter honey sugar salt pepper rice pasta soup salad apple orange lemon grape cherry banana melon onion "
    "carrot potato tomato mushroom coffee tea juice milk"
).split()

ADJECTIVES = (
    "new old big small fast slow red green blue black white bright dark open closed active idle public private local "
    "remote daily weekly monthly yearly early late first last main spare hot cold warm dry wet clean dirty full empty "
    "light heavy short long wide narrow quiet loud soft hard smooth rough sweet sour fresh rare common simple complex "
    "strict loose exact rough safe urgent normal low medium high draft final raw compact detailed silent verbose"
).split()

FIRST_NAMES = (
    "Anna Ben Clara David Emma Felix Grace Henry Ida Jack Kate Leo Mia Noah Olga Paul Rosa Sam Tina Uma Victor Wendy "
    "Yara Zoe Adam Bella Carl Dora Eric Fiona Gus Hanna Ivan Julia Karl Lena Max Nina Oscar Petra Ralf Sara Tom Vera "
    "Walter Alice Bob Carol Dan Eve Frank Gina Hugo Iris Jonas Lucia Marco Nora Otto Priya Quinn Rahul Sofia Tariq Mei"
).split()

LAST_NAMES = (
    "Miller Smith Brown Jones Garcia Lopez Novak Kovacs Larsen Berg Weber Fischer Rossi Moreau Silva Costa Tanaka Sato "
    "Kim Park Chen Wang Singh Patel Khan Haddad Okafor Mensah Ivanova Petrov Nowak Jansen Dubois Murphy Walsh Clark"
).split()

_TWO_WORD_PLACES = ("New York", "San Francisco", "Los Angeles", "Cape Town", "Buenos Aires", "Mexico City", "Hong Kong")
PLACES = (
    "Paris London Berlin Rome Madrid Vienna Prague Warsaw Athens Lisbon Dublin Oslo Stockholm Helsinki Copenhagen "
    "Brussels Amsterdam Zurich Geneva Milan Naples Venice Munich Hamburg Cologne Lyon Nice Porto Seville Valencia Kyiv "
    "Budapest Bucharest Sofia Belgrade Zagreb Istanbul Ankara Cairo Tunis Lagos Nairobi Accra Dakar Tokyo Osaka Kyoto "
    "Seoul Busan Beijing Shanghai Delhi Mumbai Chennai Bangkok Hanoi Jakarta Manila Sydney Melbourne Perth Auckland "
    "Toronto Montreal Vancouver Boston Chicago Denver Seattle Portland Austin Dallas Houston Miami Atlanta Phoenix "
    "Lima Quito Bogota Santiago Havana Caracas"
).split()

_ONSETS = (
    "b c d f g h j k l m n p r s t v w z bl br ch cl cr dr fl fr gl gr pl pr qu sh sk sl sm sn sp st str sw th tr tw "
    "wh y"
).split()
_VOWELS = "a e i o u a e i o u ai au ea ee ei ia ie io oa oo ou ui".split()
_CODAS = "b ck d f g l ll lm lt m n nd ng nk nt p r rd rk rm rn rt s sh sk ss st t th x z".split() + [""] * 24
# Halves of nouns, to be put together anew: made-up words with the letters of real ones.
_FRONTS = tuple(dict.fromkeys(noun[: len(noun) // 2] for noun in NOUNS if len(noun) >= 5))
_BACKS = tuple(dict.fromkeys(noun[len(noun) // 2 :] for noun in NOUNS if len(noun) >= 5))
# Whole words, to be cut anywhere.
_WHOLE_WORDS = tuple(dict.fromkeys((*VERBS, *NOUNS, *ADJECTIVES, *(name.lower() for name in (*FIRST_NAMES, *PLACES)))))


def is_held_out(word: str) -> bool:
    """Whether a word is kept for evaluation. Upper and lower case are one word."""
    word = word.lower()
    return zlib.crc32(word.encode()) % _HELD_OUT_ONE_IN == 0 and word not in _NEVER_HELD_OUT


@dataclass(frozen=True, slots=True)
class Lexicon:
    """The words of one side."""

    held_out: bool
    verbs: tuple[str, ...]
    nouns: tuple[str, ...]
    adjectives: tuple[str, ...]
    first_names: tuple[str, ...]
    last_names: tuple[str, ...]
    places: tuple[str, ...]

    @classmethod
    def of(cls, *, held_out: bool) -> "Lexicon":
        lists = (VERBS, NOUNS, ADJECTIVES, FIRST_NAMES, LAST_NAMES, (*PLACES, *_TWO_WORD_PLACES))
        sides = (tuple(dict.fromkeys(word for word in words if is_held_out(word) == held_out)) for words in lists)
        return cls(held_out, *sides)


@dataclass(frozen=True, slots=True)
class Source:
    """Chance and words together: what every maker of a dialogue draws from.

    An inventive source makes up verbs, adjectives and names about as often as it takes known ones. Who has met a
    hundred verbs only, however often, learns those hundred, and not that a request and a tool have a word in common.
    """

    rng: random.Random
    lexicon: Lexicon
    is_inventive: bool = False

    def pick(self, items: Sequence[T]) -> T:
        return items[int(self.rng.random() * len(items))]

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def between(self, low: int, high: int) -> int:
        """A whole number, both ends included."""
        return low + int(self.rng.random() * (high - low + 1))

    def sample(self, items: Sequence[T], num: int) -> list[T]:
        return self.rng.sample(items, num)

    def noun(self) -> str:
        return self.pick(self.lexicon.nouns)

    def verb(self) -> str:
        return self.made_up() if self._invents(0.5) else self.pick(self.lexicon.verbs)

    def adjective(self) -> str:
        return self.made_up() if self._invents(0.3) else self.pick(self.lexicon.adjectives)

    def made_up(self) -> str:
        """A made-up word, on this lexicon's side."""
        while True:
            word = self._composed()
            if is_held_out(word) == self.lexicon.held_out:
                return word

    def word(self) -> str:
        """A real noun or a made-up one. The few held-out nouns are drawn less often, or they would recur."""
        share_of_nouns = 0.2 if self.lexicon.held_out else 0.45 if self.is_inventive else 0.6
        return self.noun() if self.rng.random() < share_of_nouns else self.made_up()

    def person(self) -> str:
        first = self._name(self.lexicon.first_names)
        return first if self.chance(0.6) else f"{first} {self._name(self.lexicon.last_names)}"

    def place(self) -> str:
        return self.pick(self.lexicon.places) if self.chance(0.8) else self.made_up().capitalize()

    def _invents(self, share: float) -> bool:
        return self.is_inventive and self.chance(share)

    def _name(self, names: Sequence[str]) -> str:
        return self.made_up().capitalize() if self._invents(0.35) else self.pick(names)

    def _composed(self) -> str:
        if self._invents(0.4):
            return self._piece() + self._piece()
        if self.rng.random() < 0.3:
            return self.pick(_FRONTS) + self.pick(_BACKS)
        return "".join(
            self.pick(_ONSETS) + self.pick(_VOWELS) + self.pick(_CODAS) for _ in range(2 + (self.rng.random() < 0.35))
        )

    def _piece(self) -> str:
        """A real word, or its beginning or end: so that no part of a word is met in that word only."""
        word = self.pick(_WHOLE_WORDS)
        cut = self.between(2, max(2, len(word) - 2))
        return self.pick((word, word[:cut], word[-cut:]))
