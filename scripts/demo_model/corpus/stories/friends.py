"""Plots of friends, old and new. The notation is told in `notation.py`."""

TEXT = """
= help
topics: helping a friend; a good friend; two friends and a lot of work; a friend in need
title: Two Pairs of Hands
* [Open], [F] had {a lot of work to do|far too much work}: [fhe] had to {[chore]}.
- It was {a big job for one person|too much for one person}.
- [F] {sighed and looked at the sky|wiped [fhis] face and sat down}.
* [H] {came by and saw it|walked past and stopped|looked over the fence} and said, "{Let me help you|I have
  time, so let us do it together|Two are faster than one}."
- "But {you wanted to go fishing|you have your own work|today is your free day}!" said [F]. "{A friend is
  more important|That can wait until tomorrow}," said [H].
- They {made a plan|shared the work}: one {started on the left|took the heavy things}, and the other
  {started on the right|took the light ones}.
- Once [H] {slipped|tripped} and {fell into the grass|landed in the mud}, and both of them laughed.
- [F] sang {a song|an old song}, and [H] {sang along|whistled along}.
* They {worked side by side|worked together}, and {before sunset|before it was dark|in the afternoon}
  everything was done.
- Their {arms|backs|hands} were tired, but {they felt good|they were happy}.
- "{Alone I would have needed three days|I would still be at it tomorrow}," said [F].
* {[F] made [foods] for both of them, and they ate it in the sun|[F] said, "Next time I will help you," and
  that was a promise}.
- A week later, [H] {needed help, too|had a lot to do}, and {[F] was the first to come|[F] kept the
  promise}.
- Work is {only half as hard|much lighter} when {you share it|there are two of you}.

= sharing
topics: sharing; the last [food]; sharing [food]; two friends who share
title: The Last [Food]
* [Open], there was only one [food] left, and both [H] and [F] wanted it.
- It {lay on a white plate|smelled wonderful|looked very good}.
- "I saw it first!" said [H]. "But I am hungrier!" said [F].
* They {looked at each other|argued for a while}, and nobody {wanted to give in|was happy}.
- While they argued, {a crow came closer and closer|a dog sat down next to them and waited|the [food] got
  cold}.
- [H] {thought about it for a moment|remembered how [F] had helped [him] last week}.
- [His] stomach made a funny noise.
* Then [H] {had an idea|took a knife} and {cut|divided} the [food] into two {equal parts|halves}.
- "{You choose first|Please take the bigger half}," said [H].
- One half was {a little bigger|a bit smaller}, but that did not matter.
- [F] was {surprised|ashamed} and said, "{That is kind of you|I am sorry that I was so loud}."
* They {sat down|sat in the sun} and ate, and {half [a_food] with a friend tasted better than a whole one
  alone|both of them were happy with their half}.
- When they were done, {not a single crumb was left|they were full and [glad]}.
- The next day, [F] brought {two|a whole bag of} [foods] and {gave one to [H]|shared them with [H]}.
- Since then they {share everything|always share what they have}.

= surprise
topics: a surprise; a birthday surprise; a surprise party; a birthday
title: The Surprise
* It was [H]'s birthday, but {nobody said a word about it|everyone seemed to have forgotten it}.
- [H] waited for {a letter|a card|a song}, but {nothing came|there was nothing}.
- At breakfast, [his] [elder] only said, "{Please pass the butter|It may rain today}."
- "{Do you know what day it is|What day is it today}?" asked [H]. "It is [day]," said [his] [elder].
* {Even [F] walked past without a word|[F] only said, "I have no time today,"} and {ran away|went away
  quickly}.
- [H] {walked alone through the streets of [town]|sat alone [inplace]} and felt {lonely|forgotten}.
- [He] kicked a small stone and {sighed|watched it roll away}.
* {In the evening|When the sun went down}, [H] {came home and opened the door|opened the door of the dark
  house}, and {suddenly all the lights went on|someone turned on the light}.
- {Everyone jumped up from behind the sofa.|Friends came out from behind every chair.}
- The room was full of {[color] balloons|paper stars|flowers and candles}.
- On the table stood {a huge cake|a cake with [three] candles|a big cake and a small box}.
* "{Happy birthday|Surprise}!" {they all called|everyone shouted}, and {[F] gave [him] [athing]|[F] gave
  [him] a big hug}.
- "{You really thought we forgot you|We practiced for a week to say nothing}!" said [F] and laughed.
- They {danced and sang until midnight|played games and ate cake}.
- It was the {best|finest} birthday [H] had ever had.

= misunderstanding
topics: a misunderstanding; a friend with a secret; two friends who do not talk; thinking badly of a friend
title: [F]'s Secret
things: gifts
* For {three days|a week|days}, [F] had no time for [H] and {always ran home after school|did not open the
  door}.
- [H] {knocked on the door, but it stayed closed|waited [inplace], but nobody came}.
- When [H] asked why, [F] {turned red and looked away|only said, "Not today."}
* [H] {was sure that [F] did not like [him] anymore|thought that [F] had a new friend} and felt [sad].
- "{What did I do wrong|Did I say something bad}?" [H] asked [himself].
- [H] wrote a {long letter|short letter}, but {tore it up again|did not send it}.
- At night [he] {lay awake|could not sleep} and {thought about it|counted all [his] mistakes}.
- [His] [elder] said, "{Ask before you judge|Go there and talk|Maybe it is not what you think}."
* {At last|On [day]} [H] {took all [his] courage and asked|went there and asked}, and [F] {laughed and
  brought out|opened a box and took out} [athing].
- There was {paint on [F]'s hands|glue on [F]'s fingers}.
- "{It is for you|I made it for you}," said [F]. "{It was a secret|I wanted to surprise you}."
* {It was a gift for [H]|[F] had made it for [H] all that time}, and [H] was {a little ashamed, but very
  happy|so happy that [he] could not speak}.
- "And I thought you were angry with me!" said [H].
- Both of them laughed {until their stomachs hurt|for a long time}.
- Now [H] {always asks first|never thinks badly of a friend too soon}.
- The [thing] still {stands in [H]'s room|has a special place in [H]'s room}.

= newkid
topics: a new child at school; a new neighbor; making a new friend; someone new in town
title: The New Neighbor
* [F] {was new in [town]|had just moved to [town]} and did not know anyone.
- [F] {came from a place far away|had left all [fhis] friends behind}.
- At school [F] sat {alone in the last row|alone at the window}.
* [H] saw [F] {standing alone [inplace]|sitting alone [inplace]} and {remembered how hard it is to be
  new|thought that nobody should be alone}.
- The others {played and did not look|ran past}.
- [H] was shy, too, and {walked past twice|took a deep breath}.
* So [H] {went over and said, "Do you want to play with me?"|shared [his] [food] and asked, "What is your
  name?"}
- "I am [F]," was the answer, {very quietly|with a small smile}.
- They found out that they both liked {[things]|drawing [animals]|stories about [animals]}.
- [H] showed [F] {the best tree to climb|the shortest way to the river|the shop with the best bread}.
- [F] knew {a game that no one here knew|three songs in another language}, and soon {everybody wanted to
  learn it all|the others came closer, too}.
* {Soon they met every day|From that day on, they went to school together}, and [F] {was not alone
  anymore|felt at home in [town]}.
- [F]'s [parent] {was so happy that [yhe] baked a cake|smiled for the first time in weeks}.
- "{Thank you for talking to me|You were the first one to say hello}," said [F] one day.
- A {small word|simple question} can be the {start|beginning} of a {big|great} friendship.

= quarrel
topics: a quarrel; two friends who make up; saying sorry; an argument between friends
title: Friends Again
things: gifts
* [H] and [F] {were best friends, but one day they quarreled|had a big quarrel} about [athing].
- Both of them {pulled at it|wanted to have it}, and {neither let go|nobody let go}.
- "{I do not want to see you again|You are not my friend anymore}!" {said|shouted} [F].
* They {went home in different directions|did not speak for three days}, and both of them felt [sad].
- [H] tried to play alone, but {it was boring|it was no fun}.
- The {bench|swing} [inplace] stayed empty.
- At dinner [his] [elder] asked, "{Where is [F]|Why is [F] not here}?", and [H] {said nothing|looked at
  [his] plate}.
- It was {a very long week|a very quiet time}.
* {At last|On [day]} [H] {took the [thing]|picked a flower}, went to [F] and said, "{I am sorry|I was wrong,
  please forgive me}."
- [H] had {practiced the words on the way|needed an hour to be brave enough}.
- [F] {opened the door at once, as if [fhe] had waited|stood at the door and was quiet for a moment}.
* "{I am sorry, too|I missed you}," said [F], and {they hugged|they shook hands}.
- "You can have it," said [H]. "No, {we can both have it|you have it}," said [F].
- Then they {played together until it was dark|ran outside to play}.
- The [thing] {belongs to both of them now|now spends one week with [H] and one week with [F]}.
- It is {hard to say sorry|not easy to say sorry}, but {it is worth it|everything is lighter afterwards}.

= sick
topics: a sick friend; visiting a sick friend; cheering up a friend; a friend who is ill
title: A Visit to [F]
* [F] {was ill|had a bad cold|had a fever} and had to stay in bed {for a week|on a sunny day}.
- [F] could hear the other children {playing outside|laughing in the street}.
- [F] {was bored and counted the flies on the wall|looked out of the window all day}.
* [H] {missed [fhim] and wanted to cheer [fhim] up|felt sorry for [fhim]}, so [he] {packed a basket|put some
  things into a bag}.
- In it were {[a_food] and a book|warm soup and [a_food]|[athing] and a pot of tea}.
- "{Do not stay too long|Please be quiet}," said [F]'s [parent] at the door.
- [H] {knocked softly|came in on tiptoe}.
* [H] {told funny stories|read [fhim] a story about [a_animal]}, and {for the first time in days [F]
  laughed|[F] forgot about the illness}.
- {With two socks on [his] hands, [H] played a little theater.|[H] drew a funny picture of [a_animal] in a
  hat.}
- They {played a game of cards|looked at pictures of far countries}, and [F] won {every time|three times}.
- "{Laughing helps more than medicine|You are the best doctor}," said [F].
* {A few days later|Soon} [F] was {well again|healthy again}, and the first thing [fhe] did was to {visit
  [H]|play with [H] [inplace]}.
- The sun was {shining|warm}, and {everything was good again|they ran as fast as they could}.
- "{If you are ever ill|When you have a cold}, I will come to you," said [F].

= pet
topics: a new pet; [a_pet]; a child and [a_pet]; getting a pet
title: The [Pet] Called [Petname]
* [Open], [Hh] got {a small|a little|a young} [pet] and {called|named} it [Petname].
- [H] had {wished for a pet for years|asked for a pet every day for a year}.
- "{A pet is a lot of work|You must take care of it every day}," said [his] [elder]. "I will," said [H].
- The [pet] was {[petcolor] with [a_petcolor2] spot|[petcolor] and very soft|no bigger than a hand}.
* But [Petname] was {very shy and hid under the bed|afraid of everything and would not eat}.
- It {did not make a sound|looked at the world with big eyes}.
- [H] {sat on the floor and waited|spoke softly to it}.
- [F] {brought some food|knew a lot about animals} and said, "{Give it time|Let it come to you}."
* [H] {was patient|waited quietly} and {came every day with a little food|sat near it every evening}, until
  [Petname] {came closer|was not afraid anymore}.
- {One night there was a small noise, and|On the fourth day} [Petname] {came out and looked around|came out
  of its corner}.
- First it took {one step|two steps}, then {one more|another one}.
- [H] {held [his] breath|did not move at all}.
* {At last [Petname] fell asleep in [H]'s lap|Now [Petname] follows [H] everywhere}, and [H] {was the
  happiest [girl] in [town]|knew that they were friends}.
- "{Good night|Sleep well}, [Petname]," {whispered|said} [H].
- Every morning, [Petname] {wakes [H] up|waits at the door}.
"""
