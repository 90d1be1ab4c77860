"""What the system is asked to say."""

from __future__ import annotations

PLAIN = (
    "The weather is nice today and we will go for a walk.",
    "She sells flowers in the market every morning.",
    "He closed the door and went to the kitchen.",
    "The children are playing in the garden with a ball.",
    "We have to leave the house before the train arrives.",
    "The old man told us a story about the war.",
    "My brother works in a large office in the city.",
    "Please open the window because it is very hot.",
    "The teacher asked the students to read the book.",
    "It was a long and difficult journey through the mountains.",
    "The dog was sleeping in front of the fire.",
    "There is a small restaurant near the station.",
    "The government announced a new plan for the economy.",
)
"""Everyday words: a recognizer of everyday words must understand them."""

PARAGRAPH = (
    "When the ship came into the harbor the whole town was waiting on the shore. The mayor had put on his best coat, "
    "and the school children had learned a song. Nobody knew exactly who was on board, but everybody had heard a "
    "different story about it. Some said that a famous doctor was coming to open a hospital. Others believed that it "
    "was only a load of wood and coal for the winter. The fishermen sat on the wall and smoked, and they did not say "
    "anything at all. At last the sailors threw a rope to the men on the land, and the great ship stopped with a deep "
    "sound that could be felt in the ground. A small door opened in the side, and for a long time nothing happened. "
    "Then a girl with a red hat walked slowly down to the street. She carried a box under her arm, and she looked at "
    "all the people as if they were the strange thing and not she. The mayor began to read from his paper, but the "
    "wind took it away and carried it over the water. Everybody laughed, and the girl laughed too. She opened the box "
    "and showed them what was in it. There were hundreds of letters inside, tied with string, and on every letter was "
    "the name of somebody in the town. They had been written by the people who had left many years ago to look for "
    "work on the other side of the sea. All evening the girl went from house to house, and behind every window there "
    "was a light, and somebody was reading aloud. The song of the children was forgotten until the next morning, when "
    "they sang it after all, because the ship was leaving again and it would have been a pity to waste it."
)
"""300 words."""

VARIED = (
    "On the 3rd of March 2024, 1,250 people paid $9.99 each.",
    "Dr. Smith lives at 221B Baker St., near the U.S. embassy.",
    "Call me at 9:30 a.m. or send an e-mail to info@example.com.",
    "Siobhan O'Connor met Mr. Nguyen and Prof. Kowalski in Rotterdam.",
    "NASA's budget grew by 3.5% in Q2, i.e. about 25 billion dollars.",
    "Wait... is that you? Yes! I can't believe it; it's been ages.",
    PARAGRAPH,
)
"""Numbers, names, abbreviations, a long paragraph: they must be spoken, whatever a recognizer makes of them."""
