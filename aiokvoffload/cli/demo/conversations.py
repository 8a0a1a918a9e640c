"""What the demo's conversations are about: one system prompt for all, two documents, questions for each."""

from collections.abc import Sequence

SYSTEM = (
    "You are the reading assistant of a small public library. You answer questions of visitors about one document, "
    "which every visitor has in front of them. Answer in one short sentence, with words of the document where you can. "
    "If the document does not say it, say so. Do not repeat the question, do not add advice, do not apologise."
)

LIGHTHOUSE = """The lighthouse of Harrow Point was finished in 1871, after eleven years of work and two winters in which
no boat could land. It stands on a rock four miles off the coast that is under water at every spring tide, so its
lowest courses are of granite blocks that are dovetailed into one another and into the rock itself. The tower is forty
metres high and has nine rooms, one above the other: the entrance, the coal store, the oil store, the water tank, the
kitchen, the bedroom, the service room, the lamp room, and a small library that the first keeper, Agnes Morrow, filled
with two hundred books which she had carried up one by one. She kept the light for twenty-six years, longer than anyone
after her, and wrote down the weather every six hours. Her notebooks, thirty-one of them, are in the museum in the
harbour today, and the weather service still uses them: they are the longest series of wind measurements on that coast.

The first lamp burned rape-seed oil and could be seen for fourteen miles. It was replaced by paraffin in 1893, and by
an electric lamp in 1926, when a cable was laid from the mainland. The cable broke in the great storm of January 1953,
and for nine nights the keepers burned paraffin again, which they had kept for that purpose. Since 1988 nobody has
lived in the tower. The light is switched on by a sensor and can be seen for twenty-two miles, and a boat of the
harbour office goes out twice a year to clean the lens, look after the batteries and count the seals, of which there
were one hundred and forty last spring. Visitors are not allowed to land, but a boat goes around the rock on Sundays
in summer, if the wind is not stronger than force four, and turns back early enough to be home before the tide turns."""

RAILWAY = """The mountain railway of Silver Creek is nineteen kilometres long and climbs eleven hundred metres, from the
market square of the town to the meadows below the glacier. It was built between 1898 and 1904 by two companies that
began at opposite ends and met in the Raven Tunnel, which is why there is a bend in the middle of it: one of the
surveyors, it is said, had measured from the wrong church. The steepest part, above the sawmill, rises one metre in
every four, and there the engines hold on to a toothed rail between the tracks. The railway was made for timber and for
the marble of the upper quarries, and carried no passengers at all until 1911, when the quarrymen's families asked for
a carriage on Sundays. The first carriage had wooden benches, a stove, and a shelf for cheese.

Steam engines did the work until 1937. The electric ones that followed are still there, six of them, painted green,
each with the name of a bird; the oldest, the Heron, has travelled more than two million kilometres. When the quarries
closed in 1968 the railway was to be torn up, but the town bought it for one crown and runs it since with nine
employees and some seventy volunteers. In winter it is the only way up, and takes the children of the two upper
villages to school, the doctor on Tuesdays, and the mail every day. In summer it carries two hundred thousand visitors,
most of them to the meadows, where the line ends at a small inn. A journey up takes seventy minutes and a journey down
eighty, because the brakes must be allowed to cool at the sawmill. Dogs travel free of charge, bicycles for half of
a ticket, and cheese, by an old rule that nobody has ever repealed, in the first carriage only."""

DOCUMENTS = (LIGHTHOUSE, RAILWAY)

QUESTIONS = (
    ("When was the lighthouse finished?", "How long did the work take?", "Why did it take so long?"),
    ("How long is the railway?", "When was it built?", "Why is there a bend in the tunnel?"),
    ("What did the first lamp burn?", "What replaced it?", "What happened in 1953?"),
    ("When did steam end?", "How many electric engines are there?", "Which one is the oldest?"),
    ("How high is the tower?", "How many rooms does it have?", "Which one is at the top?"),
    ("What was the railway made for?", "When did it carry passengers?", "What was on the shelf?"),
    ("Where are the notebooks today?", "How many are there?", "Who uses them?"),
    ("How long does a journey up take?", "And a journey down?", "Do dogs pay?"),
)
"""For each conversation the questions of its turns; both begin anew when there are more. Documents take turns."""

PROBES = ("How far can the light be seen?", "When was the cable laid?", "How many books did she have?")
"""Questions that are asked with the first document in each place, to compare how soon the answer begins."""


class Chat:
    """The messages of one conversation so far."""

    def __init__(self, document: str = LIGHTHOUSE) -> None:
        self.messages = [{"role": "system", "content": f"{SYSTEM}\n\nThe document:\n\n{document}"}]

    def ask(self, question: str) -> Sequence[dict[str, str]]:
        """Add a question; returns all messages."""
        self.messages.append({"role": "user", "content": question})
        return self.messages

    def answer(self, text: str) -> None:
        """Add what was answered."""
        self.messages.append({"role": "assistant", "content": text})


def document_of(conversation: int) -> str:
    """What this conversation is about."""
    return DOCUMENTS[conversation % len(DOCUMENTS)]


def question(conversation: int, turn: int) -> str:
    """What is asked in this turn of this conversation."""
    questions = QUESTIONS[conversation % len(QUESTIONS)]
    return questions[turn % len(questions)]
