"""A seeded grammar of short children's stories; every sentence here was written for this project.

A template holds choices in brackets, "[a|b]", which may nest, and slots in braces, "{name}".
"""

import random
import re

CHOICE = re.compile(r"\[([^\[\]]*)\]")

GIRLS = ["Lily", "Mia", "Anna", "Rose", "Zoë", "Emma", "Nora", "Ruby", "Ella", "Mara", "Ivy", "Clara"]
BOYS = ["Tom", "Ben", "Max", "Sam", "Leo", "Jack", "Finn", "Hugo", "René", "Oscar", "Tim", "Paul"]
PETS = ["Pip", "Dot", "Momo", "Bibi", "Nutmeg", "Toby", "Pepper", "Coco", "Bramble", "Sunny"]
ANIMALS = ["fox", "bear", "rabbit", "duck", "mouse", "frog", "cat", "dog", "goat", "pig"]
HELPERS = ["old owl", "wise turtle", "gray squirrel", "friendly crow", "kind horse", "busy bee"]
TRAITS = ["little", "kind", "brave", "shy", "happy", "clever", "curious", "quiet"]
COLORS = ["red", "blue", "green", "yellow", "golden", "white", "purple"]
PLACES = ["in the forest", "by the river", "in the garden", "near the lake", "on the hill",
          "in the meadow", "by the sea", "in the park"]
HOBBIES = ["play", "sing", "run", "dance", "read", "draw", "walk", "look at the clouds", "pick flowers"]
TOYS = ["ball", "kite", "hat", "drum", "boat", "book", "scarf", "bell", "lantern", "whistle"]
FOODS = ["apple pie", "honey cake", "warm bread", "carrot soup", "plum jam", "berry tart"]
BUILDS = ["boat", "kite", "tree house", "tower", "bridge", "bench", "little house", "cart"]
PLANTS = ["sunflower", "apple tree", "pumpkin", "rose", "pear tree", "melon"]
WEATHER = ["The sun was warm", "The sky was blue", "The wind was soft", "The birds were singing",
           "The grass was wet"]
FAMILY = ["mother", "father", "grandmother", "grandfather", "sister", "brother"]

OPENINGS = [
    "Once upon a time, there was a {trait} {kind} named {name}.",
    "Once upon a time, in a [little|small] house {place}, there lived a {trait} {kind} named {name}.",
    "Once upon a time, a {trait} {kind} named {name} lived {place}.",
    "In a small village, there lived a {trait} {kind} named {name}.",
    "Long ago, there was a {trait} {kind} named {name} who lived {place}.",
    "There was once a {trait} {kind} named {name}.",
    "{name} was a {trait} {kind} who lived {place}.",
    "{name} was a {trait} {kind}.",
    "A {trait} {kind} named {name} lived {place}.",
]
# Openings that begin with a phrase such as "One day,"; the plot then begins with "That day,".
MEETINGS = [
    "{turn} a {trait} {kind} named {name} was walking {place}.",
    "{turn} a {trait} {kind} named {name} went out to {hobby}.",
]
HABITS = [
    "{He} [loved|liked] to {hobby} [every day|all day long|in the morning|with {his} friends].",
    "Every [day|morning|evening], {he} went out to {hobby}.",
    "{He} had a good friend named {friend}.",
    "Everyone [liked|knew] {name}, because {he} was so {trait2}.",
]
# Stories that skip the introduction start with the plot itself, so these words open many texts.
TURNS = ["One day,", "One [sunny|cold|rainy|quiet] [morning|day],", "One evening,"]

PLOTS = {
    "lost toy": [
        "{turn} {name} could not find {his} {color} {toy}.",
        "{He} [loved the {toy} more than anything|had played with the {toy} just the day before].",
        "{He} looked under the bed and [behind the door|in the kitchen], but it was not there.",
        "{name} [began to cry|was very sad|did not know what to do].",
        "[Then {his} {family} said, \"Do not worry. We will look together.\""
        "|\"I will help you,\" said {friend}. \"Let us look together.\"]",
        "They [searched|looked] [everywhere|high and low], and at last they found the {color} {toy} "
        "[under a tree|behind a big stone|in the tall grass|in an old box].",
        "\"Thank you!\" said {name}, and {he} [held the {toy} very tight|jumped for joy].",
    ],
    "hurt bird": [
        "{turn} {name} [saw|found] a small {color} bird {place}.",
        "The bird had a hurt wing and could not fly.",
        "\"[Poor|Dear] little bird,\" said {name}. \"I will [help you|take care of you].\"",
        "{He} [carried|took] the bird home and made a soft [bed|nest] for it.",
        "Every day, {name} gave the bird [water and seeds|bread and water|food and water].",
        "After [one week|many days|some time], the wing was strong again.",
        "The bird flew up into the sky and sang a [happy|sweet|pretty] song.",
        "[It came back every spring to see {name}|From that day on, the bird sang for {name} every morning].",
    ],
    "sharing": [
        "{turn} {his} {family} made some {food} for {name}.",
        "It smelled so good that {friend} came to [the door|the window|see it].",
        "\"May I have some {food}?\" asked {friend}.",
        "\"No, it is [all mine|only for me],\" said {name}.",
        "{friend} [went away|sat down] and [was very sad|began to cry].",
        "[Then {name} felt bad|Soon {name} felt sorry], because {friend} was a good friend.",
        "\"[Wait|Please come back]!\" said {name}. \"We can share the {food}.\"",
        "They sat down {place} and ate together, and the {food} tasted [even better|better than ever].",
    ],
    "the dark": [
        "One [cold evening|quiet evening|evening], {name} had to walk home in the dark.",
        "{He} was [afraid|very scared], because the [trees|shadows] looked like [monsters|big giants].",
        "\"I cannot do it,\" {he} said [in a small voice|and began to cry].",
        "Then {a_helper} came by and [asked|said], \"Why are you afraid?\"",
        "\"It is so dark,\" said {name}.",
        "The {helper} [smiled|laughed softly]. \"Look up at the [stars|moon]. You are never alone.\"",
        "{name} looked up and [saw the bright light|felt brave].",
        "{He} walked all the way home and was not afraid of the dark [again|any more].",
    ],
    "building": [
        "{turn} {name} wanted to [build|make] a [big|tall|fine] {build}.",
        "{He} worked [all day|all morning|very hard], but the {build} [broke|fell down].",
        "{name} was [angry|sad|tired] and wanted to stop.",
        "[\"Do not give up,\" said {friend}. \"We can try again.\"|\"Let me help you,\" said {friend}. "
        "\"Two are better than one.\"]",
        "{friend} brought some [wood|string|paper], and {name} brought [a hammer|some glue].",
        "They worked together until the sun went down.",
        "[In the end|At last], the {build} was [done|ready], "
        "and it was [beautiful|strong|the best {build} of all].",
        "{name} and {friend} were very proud.",
    ],
    "lost way": [
        "{turn} {name} went for a long walk.",
        "{weather}, and {he} walked [on and on|farther than ever before].",
        "Soon {he} did not know the way home. \"Oh no,\" said {name}, \"I am lost!\"",
        "{He} met {a_helper} who was resting [under a tree|on a stone].",
        "\"[Can you help me|Do you know the way home]?\" asked {name}.",
        "\"[Of course|Yes, I can],\" said the {helper}. "
        "\"Follow the [river|path|blue flowers] and you will be home soon.\"",
        "{name} thanked the {helper} and did just that.",
        "Before [night|dinner], {he} was home, "
        "and {his} {family} [gave {him} a big hug|was very happy to see {him}].",
    ],
    "seed": [
        "{turn} {a_helper} gave {name} a tiny [seed|{color} seed].",
        "\"What will it be?\" asked {name}. \"Wait and see,\" said the {helper}.",
        "{name} put the seed in the ground and gave it water every [day|morning].",
        "For a long time, nothing happened, and {name} [was sad|almost gave up].",
        "But one morning, {he} saw a little green leaf!",
        "It grew and grew until it was a big {plant}.",
        "{name} [showed it to {friend}|called {his} friends to see it]. "
        "\"[Good things take time|It was worth the wait],\" {he} said.",
    ],
    "race": [
        "{turn} there was a big race {place}.",
        "{name} wanted to win, but {he} was the smallest of all.",
        "\"You are too [slow|small],\" said {friend}, and [everyone|all the others] laughed.",
        "{name} did not give up. {He} ran every day and became [fast|strong].",
        "On the day of the race, {friend} fell down and hurt {fhis} [foot|leg].",
        "{name} stopped to help, and they walked to the end together.",
        "They did not win, but [everyone cheered for them|they were the best of friends after that].",
    ],
    "gift": [
        "{turn} it was the birthday of {his} {family}.",
        "{name} had no money to buy a gift.",
        "\"What can I do?\" {he} asked {friend}.",
        "\"You can make [something|a gift] with your own hands,\" said {friend}.",
        "So {name} [made|painted] a {color} {toy} and [put it in a box|tied it with a ribbon].",
        "When {his} {family} saw the {toy}, {fam_he} smiled [and smiled|from ear to ear].",
        "\"This is the best gift of all,\" {fam_he} said, \"because you made it [for me|with love].\"",
    ],
    "broken cup": [
        "{turn} {name} was playing with a {color} {toy} in the house.",
        "The {toy} hit a [cup|plate|jar] and broke it.",
        "{name} was [afraid|scared] and hid [under the bed|behind the door|in the garden].",
        "\"Who did this?\" asked {his} {family}.",
        "{name} wanted to run away, but {he} knew it was [better|right] to tell the truth.",
        "\"It was me,\" {he} said. \"I am [very|so] sorry.\"",
        "{His} {family} gave {him} a hug. \"Thank you for telling the truth,\" {fam_he} said.",
        "They cleaned up together, and {name} felt [much better|happy again].",
    ],
    "dragon": [
        "{turn} {name} heard a loud [noise|cry] coming from [a dark cave|the old castle].",
        "Inside, {he} found a big {color} dragon.",
        "{name} wanted to run, but then {he} saw that the dragon was crying.",
        "\"Why are you [sad|crying]?\" asked {name}.",
        "\"Everyone is afraid of me, and I have no friends,\" said the dragon.",
        "\"I am not afraid,\" said {name}. \"I will be your friend.\"",
        "{He} gave the dragon some {food}, and the dragon [smiled|was happy].",
        "[From that day on|After that], {name} and the dragon played together [every day|{place}].",
    ],
    "new friend": [
        "{turn} {name} met {friend} {place}.",
        "\"Will you play with me?\" asked {name}. But {friend} was too shy to answer.",
        "{name} [thought for a while|had an idea]. {He} [handed|gave] {his} {color} {toy} to {friend}.",
        "\"This is my {toy}. You can [play with|hold] it too,\" {he} said.",
        "{friend} [smiled|laughed] and said, \"Thank you.\"",
        "They played with the {toy} until [the sun went down|it was time to go home].",
        "\"[Will you come back tomorrow|Can we play again]?\" asked {friend}. "
        "\"[Yes|Of course],\" said {name}.",
    ],
}

ENDINGS = [
    "The end.", "And they all lived happily ever after.", "It was a [good|happy|wonderful] day.",
    "{name} [smiled|was happy] and slept well that night.", "And {name} never forgot that day.",
    "{name} learned that [it is good to be kind|friends help each other|it is good to be brave].",
]


def pick(rng, items, head=1):
    """Picks earlier items more often, so that the trained model rarely has two next tokens of nearly equal logits."""
    return rng.choices(items, [1 / (i + head) for i in range(len(items))])[0]


def expand(template, rng, slots):
    """Resolves the innermost choices first, then fills the slots."""
    while "[" in template:
        template = CHOICE.sub(lambda m: pick(rng, m.group(1).split("|")), template)
    return template.format_map(slots)


def character(rng):
    """Returns a name, the kind of character, and whether the character is female."""
    she = rng.random() < 0.6
    if rng.random() < 0.3:
        return pick(rng, PETS), pick(rng, ANIMALS), she
    return pick(rng, GIRLS if she else BOYS), "girl" if she else "boy", she


def story(rng):
    name, kind, she = character(rng)
    friend, friend_she = name, she
    while friend == name:
        friend, _, friend_she = character(rng)
    family = pick(rng, FAMILY)
    helper = pick(rng, HELPERS)
    trait = trait2 = pick(rng, TRAITS)
    while trait2 in (trait, "little"):
        trait2 = pick(rng, TRAITS)
    slots = {
        "name": name, "kind": kind, "friend": friend, "family": family, "helper": helper,
        "a_helper": ("an " if helper[0] in "aeiou" else "a ") + helper,
        "he": "she" if she else "he", "He": "She" if she else "He",
        "him": "her" if she else "him", "his": "her" if she else "his", "His": "Her" if she else "His",
        "fhis": "her" if friend_she else "his",
        "fam_he": "she" if family in ("mother", "grandmother", "sister") else "he",
        "trait": trait, "trait2": trait2,
    }
    lists = {"color": COLORS, "place": PLACES, "hobby": HOBBIES, "toy": TOYS, "food": FOODS,
             "weather": WEATHER, "build": BUILDS, "plant": PLANTS}
    slots.update({key: pick(rng, values) for key, values in lists.items()})
    slots["turn"] = expand(pick(rng, TURNS), rng, slots)

    sentences = []
    if rng.random() < 0.85:
        sentences.append(pick(rng, OPENINGS + MEETINGS, 2))
        if rng.random() < 0.4:
            sentences.append(pick(rng, HABITS))
    sentences += PLOTS[pick(rng, list(PLOTS), 4)]
    if rng.random() < 0.7:
        sentences.append(pick(rng, ENDINGS))
    told = []
    for sentence in sentences:
        told.append(expand(sentence, rng, slots))
        if sentence in MEETINGS:
            slots["turn"] = "That day,"
    return " ".join(told)


def stories(count, seed):
    """Returns `count` different stories, always the same for one seed."""
    rng = random.Random(seed)
    seen = {}
    while len(seen) < count:
        seen.setdefault(story(rng))
    return list(seen)


if __name__ == "__main__":
    print("\n\n".join(stories(12, seed=0)))
