"""Plots of home, work and small mistakes. The notation is told in `notation.py`."""

TEXT = """
= lost
topics: a lost [thing]; losing and finding [athing]; [athing] that was lost and found; someone who loses
  [athing]
title: The Lost [Thing]
things: carried
* [Open], [Hh] {could not find [his] [adjthing]|saw that [his] [adjthing] was gone|lost [his] [adjthing]
  [inplace]}.
- The [thing] was {a gift from [his] [elder]|[his] favorite thing in the world|very dear to [him]}.
- [H] looked {under the bed and behind the door|in every room and in every corner|in [his] bag and in all
  [his] pockets}, but it was not there.
- {"Where did I leave it?"|"Where can it be?"} [H] asked [himself].
* [F] {saw that [H] was [sad] and|heard about it and|noticed the long face and} {offered to help|came to
  help at once|said, "We will find it together."}
- "When did you see it last?" asked [F]. "Yesterday, [inplace]," said [H].
- They {walked the same way again, step by step|asked everyone they met|looked left and right as they
  walked}.
- An old [adult] {shook [yhis] head and said, "I have not seen it."|told them, "Look where you were happy,
  and you will find it."}
- After a while [H] {was tired and wanted to give up|sat down and sighed|felt like crying}, but [F] {would
  not stop|said, "Just one more try."|took [his] hand and went on}.
* At last {they found the [thing] under a {bench|bush|big tree|pile of leaves}|[F] saw something [color]
  behind a {wall|bush|tree}, and it was the [thing]|they saw the [thing] next to {a fence|an old door|a
  stone wall}}.
- {"There it is!" cried [H].|"Look, over there!" called [F].}
- It was {a little dirty, but it was not broken|a little wet, but it was as good as before}.
* [H] {hugged [F] and promised to take better care of the [thing]|was very [glad] and never left the [thing]
  behind again|thanked [F], and they went home with the [thing]}.
- From then on, [H] always {put the [thing] in the same place|checked [his] bag before going home}.

= gift
topics: making a gift; a gift for [a_elder]; a handmade present; [athing] as a gift
title: A Gift for [His] [Elder]
things: gifts
* [Hh] wanted to give [his] [elder] {a special gift|a birthday present|something nice}, but [he] {had no
  money|had only a few coins}.
- The birthday was {only two days away|on [day]|the next day}.
- [H] {looked at the shop windows in [town]|went to every shop on the street}, but everything was too
  {expensive|big and costly}.
* [F] had {a good idea|an idea}: they could make [athing] themselves.
- {"A gift from the heart is the best one," said [F].|"You are good with your hands," said [F].}
- They {found {old wood, paper and string|colored paper and glue|bright paint and two brushes} in a
  drawer|collected all they needed in a big box}.
- The first try {did not look good|went wrong|fell apart}, so [H] {started again|tried again}.
- They {cut and glued|worked and laughed|measured and painted} {all afternoon|until it was dark|for three
  hours}.
* When the day came, [H] gave [his] [elder] {the [adjthing] in a small box|the [adjthing] with a ribbon
  around it}.
- [H] was a little nervous and {held [his] breath|looked at the floor}.
- {"Did you make this yourself?" asked [his] [elder].|"This is wonderful!" said [his] [elder].}
- [His] [elder] {turned it around and looked at every side|held it up to the light}.
* [His] [elder] {smiled and said it was the best gift of all|had tears of joy and put the [thing] in the
  best place of the house}.
- [H] learned that {a gift does not have to cost much|time and love make the best gifts}.

= mend
topics: mending [athing]; a broken [thing]; repairing [athing]; someone who fixes a broken [thing]
title: The Broken [Thing]
things: mendable
* [Open], [Hh] {dropped [his] [adjthing], and it broke|found out that [his] [adjthing] was broken|pulled too
  hard, and [his] [adjthing] broke}.
- {There was a long crack on one side.|One piece was missing.|It made a strange sound and then no sound at
  all.}
- "{Now it is useless|I have to throw it away|It will never work again}," said [H] [sadly].
* "{Wait|Do not worry|Do not give up}," said [F]. "We can {fix|mend|repair} it."
- They put {all the pieces|everything they needed} on the kitchen table.
- [F] {brought some glue and a small brush|had a box full of little tools|knew a lot about such things}.
- [H] {held the pieces together while [F] worked|counted the pieces and put them in order|cleaned every part
  with a soft cloth}.
- First they {made a mistake and had to start again|did not know how to begin}, but they {stayed calm|did
  not give up}.
- [His] [elder] {came in and showed them a good trick|watched them and smiled}.
* They worked {slowly and carefully|for a long time|until dinner}, and {step by step|little by little} the
  [thing] became whole again.
- "Now we must wait {one hour|until tomorrow|for a little while}," said [F], and waiting was the hardest
  part.
- In the end you could {hardly see where it was broken|see only a thin line}.
* [H] {tried it out, and it was as good as new|was proud, because the mended [thing] was even better than
  before}.
- Since that day, [H] {never throws things away too soon|repairs things for all [his] friends}.
- "Thank you, [F]," said [H]. "{You have clever hands|I could not do it alone}."

= learn
topics: learning to [skill]; someone who wants to [skill]; learning how to [skill]; practice
title: Learning to [Skill]
* [Hh] wanted to learn to [skill], but {it was hard|it looked very difficult|[he] did not know how}.
- All the other children {could do it already|made it look so easy}.
- On the first day, [he] {failed again and again|fell down and hurt [his] knee|made one mistake after
  another}.
- "I will never learn it," {said [H]|thought [H]}.
* [F] {showed [him] how to begin|offered to teach [him]|said, "I will help you."} and {told [him] to be
  patient|told [him] to try a little every day}.
- "{I needed a whole summer to learn it|Nobody can do it on the first day}," said [F].
- They met {every afternoon|every [day]|after school} {at [F]'s house|at [H]'s house}.
- [F] said, "{Slowly, and do not look down|Take a deep breath first|Start with the easy part}."
- On some days it {rained|was cold}, but [H] {practiced anyway|came every time}.
* [H] practiced {every day|every morning|day after day}, and {little by little [he] got better|each day it
  went a bit better}.
- After {one week|two weeks|ten days}, something {changed|was different}: {it felt easier|[he] was no longer
  afraid of mistakes}.
- One day [F] {only watched and did not help|stood back and said nothing}.
* {Then, one [time],|At last} [H] {could [skill]|was able to [skill]} {all alone|without any help}, and {[F]
  clapped|everyone cheered|[he] laughed with joy}.
- "I can do it! I can really do it!" {cried|called|shouted} [H].
- Now [H] teaches {the younger children|[his] little cousin} to [skill].
- The secret was {simple: never stop trying|to practice a little every day}.

= truth
topics: telling the truth; a broken [thing] and an honest child; being honest; a mistake
title: The Truth about the [Thing]
things: fragile
* [Open], [Hh] {ran through the house|played with a ball in the house} and broke [his] [elder]'s [adjthing].
- The [thing] {fell on the floor with a loud crash|hit the floor and went into many pieces}.
- [His] heart {beat fast|was heavy}.
- Nobody was at home, and nobody had seen it.
* [He] wanted to {hide the pieces|say that the wind did it|blame the cat}, but {[he] felt bad about it|it
  did not feel right}.
- [He] put the pieces in a {box|bag} and {pushed it under the bed|carried it to [his] room}.
- At {dinner|lunch} [he] could not eat {a single bite|anything}.
- [F] asked, "What is wrong?", and [H] told [F] everything.
- [F] {saw the pieces and|heard about it and} said, "{The truth is always the better way|You should tell
  it}."
* {So|In the evening} [he] went to [his] [elder] and {told the truth|said, "I broke your [thing], and I am
  sorry."}
- [His] voice was very small.
- [His] [elder] was quiet for {a moment|a long time}.
- The [thing] {came from a trip long ago|had stood there for many years}.
* [His] [elder] {was not angry and said, "Thank you for being honest."|gave [him] a hug and said that the
  truth is worth more than any [thing]}.
- Together they {swept the floor and glued the pieces|picked up the last pieces}.
- That night [H] slept {well|better than ever}, because {[he] had nothing to hide|[his] heart was light}.
- And [H] never {ran through the house|played ball in the house} again.

= firstjob
topics: a first day at work; someone who helps [a_job]; working for [a_job]; a day with [a_job]
title: A Day with the [Job]
* [Open], [Hh] went to {help|work for} {an old|a busy|a friendly} [job] called [F].
- [He] had {put on clean clothes and a warm smile|slept badly, because [he] was so excited}.
- The [job] was {the best|well known} in [town].
- "{Watch first, then try|We start early here|Do not be afraid to ask}," said [F].
* At first, {everything went wrong|[he] made many mistakes|nothing was easy}, because [he] {was too fast|did
  not listen|was in a hurry}.
- [H] {dropped a box|mixed up two names|forgot to close the door}, and [his] face turned red.
- A {tall|tired|nice} {man|woman} came in and {waited|asked a difficult question}.
- "{Everybody starts small|I made the same mistakes when I was young}," said [F] with a smile.
* [F] {showed [him] everything again|stayed calm|gave [him] a second chance}, and this time [he] {took [his]
  time|listened well|worked slowly and with care}.
- Soon [H] knew {where everything belonged|what to do without asking}.
- At noon they {shared some bread and cheese|drank tea and talked about the work}.
- The hours {flew by|passed quickly}.
* In the evening, {[F] gave [him] three coins and said, "Come back tomorrow."|[he] was tired but proud of
  the good work}.
- [H] {ran home and told [his] family everything|put the first coin into a small box}.
- "One day I will be [a_job], too," {said|thought} [H].

= cook
topics: cooking together; baking for friends; making soup for everyone; a meal with friends
title: A Pot for Everyone
* [Open], [Hh] wanted to {cook|make a big soup} for {all the neighbors|all [his] friends}, but the kitchen
  was almost empty.
- There was only {one onion|one small potato|a little salt and water} in the kitchen.
- "{I cannot invite anyone|This is not enough for anyone}," said [H].
* {Then [F] knocked on the door and|[F] heard about it and} brought {three carrots|a bag of beans|some fresh
  bread}.
- "{I have more than I need|Two are better than one}," said [F].
- The neighbor on the left {brought potatoes|came with a big pot}, and the neighbor on the right {brought
  tomatoes|came with herbs from the garden}.
- Even {the little boy from next door|old Mr. [Sur]|the quiet lady from upstairs} came with {one egg|a small
  piece of cheese|a spoon}.
- They {washed and cut everything|sang while they cut the vegetables}.
* Soon {everyone brought something|more and more people came, and each one brought something}, and the pot
  {was full|became full}.
- The soup {bubbled|cooked} for an hour, and {the whole house smelled good|the windows became white with
  steam}.
- [H] tasted it and said, "It needs {a little salt|one more carrot|five more minutes}."
* {In the end|That evening} they all {sat at one long table|ate together}, and it was the best {soup|meal}
  {of the year|they had ever eaten}.
- Nobody went home hungry, and there was {even some left for the next day|still a little left for the cat}.
- "{We should do this every [day]|Next time you must come to my house}," said [F].
- [H] looked at the empty pot and {smiled|was happy}: {it had started with almost nothing|many small things
  had made a big one}.

= honestfind
topics: finding a lost [thing]; giving something back; [athing] that belongs to someone else; an honest
  finder
title: Whose [Thing] Is It?
things: carried
* [Open], [Hh] found [athing] {on the ground|on a bench|under a tree} [inplace].
- It was {very beautiful|just what [he] had always wanted}.
- [H] looked around, but there was {nobody near|no one to be seen}.
* [He] {wanted to keep it|would have liked to keep it}, but [he] {thought that someone must miss it|knew
  that it belonged to someone else}.
- "If it were mine, I would be sad," {said|thought} [H].
- There were {two small letters|a name that was hard to read} on {the bottom|the side} of it.
- [He] asked {a postman|a woman with a dog|three children}, but {it was not theirs|they did not know whose
  it was}.
- [He] wrote a note: "Found: [athing]. {Please ask for [H]|Ask [H]}."
* {After a long search|Then|The next day} [he] met [F], who {was looking for it everywhere|had lost it the
  day before}.
- "{What does it look like|Can you tell me what you lost}?" asked [H]. "It is [athing]," said [F].
- [F] {had walked up and down the street all day|had not slept all night}.
- The [thing] was {from [fhis] grandmother|the last gift of an old friend}.
* [H] gave the [thing] back, and {[F] was so [glad] that they became good friends|[F] thanked [him] again
  and again}.
- [F] {wanted to pay, but [H] said no|invited [H] for a piece of cake}.
- [H] went home with empty hands and {a warm heart|a big smile}.
"""
