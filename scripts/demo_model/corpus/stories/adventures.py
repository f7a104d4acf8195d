"""Plots of trips, treasures and tests of courage. The notation is told in `notation.py`."""

TEXT = """
= trip
topics: a trip to [city]; a train ride; a journey; a trip with a friend
title: The Trip to [City]
* [Open], [Hh] and [F] {took the train to [city]|went on a trip to [city]}.
- They had {packed [foods] and a map|two bags and a big map}.
- [H] had never {been so far away|been there before} and {was very excited|could hardly sit still}.
- From the window they saw {fields, rivers and small villages|cows, hills and old towers}.
* But {they got off too early|they took the wrong train} and {stood in a village that they did not know|came
  to a small station with no people}.
- "{This does not look like [city],|Where are we?}" said [H].
- The next train came {only in the evening|only after four hours}.
- [F] looked at the map {the wrong way around|again and again}.
* {Instead of being sad, they|They made the best of it and} {walked around|looked around} and found {a
  market with music|a lake with clear water|an old castle}.
- A friendly {farmer|baker} gave them {bread and cheese|fresh bread} and {told them about the place|showed
  them the way}.
- They {swam and lay in the sun|took [three] photos|bought [a_color] postcard}.
- "{Nobody told us that it is so nice here|This is better than any plan}," said [F].
* {In the evening they went home|They never came to [city] that day}, but {it was the best trip of the
  year|they agreed that the wrong way was the best one}.
- On the way back, both of them {fell asleep|laughed about it}.
- "Next time we will go to [city]," said [H]. "{Or get lost again|Maybe}," said [F].
- The postcard still {hangs on [H]'s wall|stands on [H]'s desk}.

= lostway
spots: nature
topics: getting lost; being lost [inplace]; finding the way home; lost in the dark
title: The Way Home
* [Hh] and [F] {were looking for mushrooms|followed a butterfly|were playing} and {suddenly did not know the
  way home|lost their way}.
- Everything looked {the same|strange}.
- "I think we must go left," said [H]. "{I think we must go right|We were here before}," said [F].
* It {was getting dark|began to get dark}, and they {called, but nobody answered|were tired and afraid}.
- {A branch cracked somewhere.|The shadows became long.|An owl called.}
- They held hands {so that nobody got lost|and stayed close together}.
- They had only {one apple|half a sandwich} and {shared it|ate it slowly}.
* Then [H] {remembered the words of [his] [elder]|had an idea}: {"Follow the water, and you will find
  people."|"If you walk along a stream, you come to a house."}
- They {listened and heard a soft sound|were very quiet and listened}.
- They {walked along a small stream|climbed over stones and roots}.
- "{I hear something|I can see a light}!" {cried|said} [F].
* {Soon|At last} they saw {the lights of the village|a light, and it was [H]'s house}, and {everyone was
  [glad] to see them|they ran the last steps}.
- "{Where have you been?|We were so worried!}" said [H]'s [elder].
- {That night they slept deeply.|Their soup was hot, and their beds were soft.}
- {Next time they will take a map.|Now they mark their way with small stones.}

= fear
topics: being afraid of [fear]; being brave; a small fear; courage
title: Brave [H]
* [Hh] was afraid of [fear] and {told nobody about it|did not want anyone to know}.
- [His] hands {became cold|shook} when [he] {only thought of it|only heard the words}.
- The others {laughed about such things|were never afraid}, or so [he] thought.
* {One day|One [time]}, [F] {noticed it|found out} and said, "{Everyone is afraid of something|I was afraid
  of that, too|You do not have to be ashamed}."
- "{Really? You, too|Are you not laughing at me}?" asked [H].
- "I am afraid of {spiders|thunder|the dentist}," said [F], "and I still {live|laugh}."
- They made a plan: {a very small step every day|first a small step, then a bigger one}.
* {So|The next day} [F] {stayed close|took [his] hand}, and [H] {took a deep breath|counted to ten} and
  {faced [fear] for one minute|tried to be brave for a moment}.
- [His] heart {beat like a drum|was very loud}.
- "{I am right here|You are not alone}," said [F].
- {After a minute it was not so bad anymore.|The fear became a little smaller.}
- The next time it was {two minutes|five minutes}, and then {ten|a whole hour}.
* {After some weeks|In the end} [H] {was not afraid of [fear] anymore|was still a little afraid of [fear],
  but it did not stop [him]}.
- "{Being brave means to do it anyway|I did it}," said [H].
- [F] {gave [him] a paper medal|was proud of [him]}.
- Now [H] helps {other children|[his] little cousin} who {are|is} afraid.

= contest
topics: a contest; a [contest]; someone who takes part in a [contest]; winning and losing
title: The Contest
* [Open], there was a [contest] in [town], and [Hh] wanted to win.
- The first prize was [athing].
- [H] {had practiced for weeks|practiced every day}.
- "{Good luck|May the best one win}," said [F], who also took part.
* {Just before it began|In the middle of it}, [H] saw that [F] {had forgotten something important|was in
  trouble} and {could not go on|was close to tears}.
- {Nobody else saw it.|The others looked away.}
- [H] {looked at the prize and then at [F]|thought about it for a second}.
- The clock {was ticking|did not wait}.
* [H] {stopped and helped|went over and helped} [F], {although it cost time|even if that meant to lose}.
- "{Why are you doing this?|You will lose!}" said [F]. "{You are my friend|A friend is more than a prize},"
  said [H].
- The people {stood up|became quiet} and watched.
- {After that they both hurried.|Together it took only a minute.}
* {Someone else won, but|In the end [F] won, and [H] came second, but} {the two friends were the happiest of
  all|both of them got the longest applause}.
- "{Next year you will win|Half of it is yours}," said [F].
- The judge gave [H] {a special prize for fair play|a medal for the best heart}.
- Later they {ate [foods] together|went home arm in arm}.

= mystery
wild: visitors
topics: a mystery; who took the [food]; a strange thief; a riddle
title: The Mystery of the Missing [Foods]
* Every {night|morning}, {one [food] was missing from|[a_food] disappeared from} [H]'s kitchen.
- On Monday there were {ten|nine}, and on Tuesday there {was one less|were fewer}.
- "{I did not take it|It was not me}," said [H]'s [elder].
- The door was {locked|closed}, and so {were the windows|was the window}, almost.
* [H] {wanted to know who took them|decided to solve the mystery} and asked [F] to {help|be the second
  detective}.
- They {looked for tracks with a big glass|wrote everything in a notebook}.
- They {put flour on the floor|hid under the table}, and it was hard {not to laugh|to stay awake}.
- "{A ghost|Maybe a giant}?" said [F]. "{There are no ghosts|Ghosts do not eat}," said [H].
* {In the night|At midnight} they heard {a soft noise|small steps}, turned on the light and saw [a_wild].
- It sat {in the middle of the table|on the shelf} and {looked very surprised|had its mouth full}.
- It had come {through a hole in the wall|through the small window}.
- "{So you are the thief|Now we have you}!" said [H] {and laughed|kindly}.
* {It was only hungry, so|They were not angry, and from then on} {they put a plate with food outside for it
  every evening|[H] put a little food at the door every night}.
- Nothing {was ever missing|disappeared} again.
- In the notebook [F] wrote: "{Case closed|The thief is our friend now}."
- The [wild] {still comes every evening|had three babies in spring}.

= treasure
topics: a treasure; an old map; a treasure hunt; a secret map
title: The Old Map
* [Open], [Hh] found an old map {in a book|in the attic|behind a picture} with {a red cross|an X} on it.
- The paper was {yellow and thin|so old that it almost broke}.
- {"For the one who is brave," it said.|On the back stood the words: "Look below."}
* [H] showed it to [F], and they {followed the map|went to find the treasure} {over the hill|past the
  mill|across the bridge} to {an old tree|a tall rock}.
- They counted {twenty|fifty|thirty} steps {to the north|to the west}.
- "{What will it be? Gold|Do you think there is gold}?" asked [F].
- They {took a rope, a lamp and some bread|had a shovel and a bag}.
- Once they went the wrong way and {met a cow|landed in a swamp}.
* They dug {for an hour|until their arms hurt} and found {a wooden box|an iron box|a small chest}.
- {It was closed with a rusty lock.|It was heavy and dirty.}
- Something {moved|made a sound} in it.
- "{Open it|Quick, open it}!" {said|whispered} [F].
* There was no gold in it, but [athing] and a letter: {"The real treasure is the friend who came with
  you."|"Now you know how much fun it is to look."}
- They {looked at each other and laughed|read it twice and smiled}.
- It was from [H]'s [elder], who had {hidden it as a child|made the map many years ago}.
- Then they {put in a note of their own|hid it again} for {the next ones|other children}.

= letter
topics: a letter in a bottle; a letter from far away; a pen friend; a message
title: The Letter in the Bottle
* [Open], [Hh] found a bottle {at the river|at the beach} with a letter in it.
- It was {green and covered with sand|old and covered with green plants}.
- [H] needed {a long time|a thin stick} to get the paper out.
* The letter was from [F] in [city], who {was looking for a friend|asked, "Who will find this?"}
- It was written {in blue ink|with a pencil} and {a little wet|hard to read}.
- "{Please write back|If you find this, please answer me}," it said.
- On the map, [city] was {very far away|as far as a whole hand}.
* [H] {wrote a long answer|wrote back at once} and told [F] about {[town] and [his] [pet]|[his] family and
  [his] [pet]}.
- [His] [elder] gave [him] {a stamp with a ship on it|a stamp and an envelope}.
- For {two weeks|a whole month}, {no answer came|the mailbox stayed empty}.
- Then {the postman rang the bell|a thick letter came}.
- In it was {a photo and a dried flower|a picture of a house by the sea}.
* {They wrote each other for years, and|After many letters} {one day [F] stood at the door with a big
  smile|they finally met and felt like old friends}.
- "{You look just like in your letters|I would know you anywhere}," said [H].
- The bottle {stands on [H]'s shelf|has a place of honor in [H]'s room}.
- {Next week they will throw a new one into the water together.|Such a small bottle had carried such a big
  thing.}

= build
spots: nature
topics: building a [build]; a [build]; working together; two friends who build something
title: The [Build]
* {Last summer|One summer}, [Hh] and [F] {wanted to build|decided to build} a [build] [inplace].
- They {drew a plan on a big sheet of paper|had seen one in a book}.
- They collected {boards, nails and rope|old wood and strong rope}.
- "{I will be the boss|I know how to do it}," said [H]. "{No, me|We will see}," said [F].
* {But each of them wanted it another way, and|They began too fast, and} {on the first day it fell down|soon
  it fell down with a crash}.
- {Dust was everywhere.|Only one piece was still standing.}
- {For a moment nobody spoke.|"That was your side!" said [F].}
- [H] hit [his] thumb {and jumped around|with the hammer}.
* {So they sat down|Then they talked about it} and {made one plan together|listened to each other}, and
  {started again|began again from the bottom}.
- [F] {was good with the saw|knew the best knots}, and [H] {was good with the hammer|had the best ideas}.
- [His] [elder] {brought them some lemonade|held the ladder}.
- It took {a whole week|ten days|five afternoons}.
* {At last it stood there|In the end it was ready}, and {it was even better than in the plan|it did not
  fall, not even in the wind}.
- They painted it {[color]|[color] and white} and {wrote both their names on it|put a flag on it}.
- In the first night they {slept badly, but they were happy|told each other stories there}.
- "{Two heads are better than one|Next year we build a bigger one}," said [F].

= music
topics: an old [instrument]; making music; a concert; someone who plays the [instrument]
title: The Old [Instrument]
* [Open], [Hh] found an old [instrument] {in the attic|in a dusty box|at the market}.
- It was {covered with dust|scratched and out of tune}.
- "{That was mine when I was young|It has not been played for years}," said [his] [elder].
* [He] tried to play it, but it {sounded terrible|sounded like a sick cat}, and {the neighbors closed their
  windows|the dog ran away}.
- Even {the birds stopped singing|the cat hid under the sofa}.
- [H] {wanted to give up|put it back into the box}.
- [F] {said, "Again, but softer."|listened and did not laugh.}
* [F], who {could read notes|played the drum}, {helped [him] every evening|practiced with [him]}, and {the
  notes became clear|it sounded better each week}.
- First there was one note, then a {short song|little song}.
- [His] fingers {hurt at first|learned the way}.
- They practiced {[inplace], where nobody could hear them|until the moon came up}.
- "{That was beautiful|Did you hear that? It was right}!" said [F] one day.
* At the {summer|autumn|spring} {festival|party} they played together, and {all the people of [town]
  danced|everyone clapped and wanted more}.
- [H]'s [elder] {had tears in the eyes|sat in the first row}.
- The same neighbors now {opened their windows wide|asked for one more song}.
- The old [instrument] {shone in the light|had found its voice again}.

= picnic
spots: nature
topics: a picnic; a picnic in the rain; plans that go wrong; a rainy day
title: A Picnic Indoors
* [H] and [F] {had planned a picnic [inplace]|wanted to have a picnic [inplace]}, but {it began to rain|on
  that day it rained}.
- The basket was full of {[foods] and [foods2]|[foods] and lemonade}.
- They had {looked forward to it all week|waited for it since Monday}.
- {Big drops fell on the blanket.|The rain ran down the window.}
* {At first they were [sad] and|They} {looked out of the window|sat in the kitchen and did not know what to
  do}.
- "{It is not fair,|Why today?}" said [F].
- The sky {was gray from one end to the other|did not get lighter at all}.
- The clock {ticked|was very slow}.
* Then [H] {had an idea|jumped up} and {put the blanket on the floor of the living room|said, "Then we make
  a picnic inside!"}
- [F] put {all the plants around it|green towels around it} {like a forest|as if it were a garden}.
- They hung {a yellow lamp|a yellow plate} up high {as the sun|and called it the sun}.
- A toy [animal] {was invited, too|sat next to them as a guest}.
- [H] made {bird sounds|the sound of the wind}, and [F] laughed.
* They {ate|sat there and ate} everything {and told stories|and played games}, and {the rain could not spoil
  their day|it was the best picnic of all}.
- There were no {ants|flies} and no {wind|wasps}.
- In the evening, {the rain stopped, but they did not even notice|the sun came out, and they only laughed}.
- "{Next week again, even if the sun shines|Let us hope for rain next time}," said [F].

= lantern
topics: a light in the night; a lighthouse; helping a boat; a brave child by the sea
title: The Light in the Night
* {One stormy night|One dark night}, the lamp of the lighthouse near [town] went out.
- {The wind cried around the house.|The waves were as high as a wall.}
- The old keeper was {ill and could not get up|in the town and could not come back}.
* [Hh] {saw a small boat on the sea|heard a ship's horn} and knew that {it was in danger|without light it
  would hit the rocks}.
- "{Someone must do something|They cannot see the rocks}!" {cried|said} [H].
- [His] [elder] {was not at home|was asleep}.
- The boat {went up and down on the waves|came closer and closer to the rocks}.
* [He] took a lantern, {ran up all the stairs|ran to the top of the hill}, and {waved it until [his] arm
  hurt|held it high in the wind}.
- There were {ninety|more than a hundred} steps, and [H] {took two at a time|did not count them}.
- The wind {almost blew the light out|pulled at [his] coat}.
- "{Here! Come this way|Look at the light}!" {called|shouted} [H].
* {The boat turned just in time|The people saw the light}, and {[F], who was on board, came safely to the
  harbor|soon [F] and the crew were safe on land}.
- "{Who held that light?|You saved us all,}" said [F], {wet and tired|with a shaking voice}.
- The next day {[F] gave [him] [athing]|the whole town came to say thank you}.
- Since then, [H] {checks the lamp every evening|has a second lamp ready}.
- {Even a small light can be seen from far away.|A small lantern can be enough.}

= swap
topics: trading things; the market; swapping [athing]; a clever trade
title: A Good Trade
* [Open], [Hh] went to the market in [town] {to sell|to trade} [his] [adjthing].
- [He] {did not need it anymore|had two of them}.
- The market was {loud and full of colors|full of people}.
* A {farmer|baker|painter} gave [him] {a bag of apples|a pot of honey|a big cheese} for it, {and that was a
  good trade|and [he] was content}.
- "{It is just what I was looking for|I have looked for one everywhere}," said the buyer.
- They shook hands {on it|like grown people}.
- It was {heavy to carry|too heavy for one hand}.
* On the way home, [he] met [F], who {had eaten nothing all day|was tired and hungry}, and {shared
  everything with [fhim]|gave half of it to [fhim]}.
- "{I have nothing to give you for it|I cannot pay}," said [F]. "{That does not matter|You do not have to},"
  said [H].
- They sat {on a wall|under a tree} and ate.
- [F] told [him] about {a long journey|a house by the sea}.
* {The next day|A week later} [F] came to [H]'s door with {a basket of eggs as a thank you|a song and a big
  basket of [foods]}.
- "{You gave without asking for anything|I have not forgotten it}," said [F].
- {So in the end it was the best trade of all.|"I only sold an old thing, and I got a friend," said [H].}
- Next week they {will go to the market together|want to sell [foods] together}.
"""
