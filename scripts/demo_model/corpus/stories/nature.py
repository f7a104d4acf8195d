"""Plots of weather, plants and animals. The notation is told in `notation.py`."""

TEXT = """
= storm
spots: nature
topics: a storm; bad weather; being caught in the rain; a storm [inplace]
title: The Storm
* [H] and [F] were [inplace] when {dark clouds came|the sky turned black|a strong wind began to blow}.
- In the morning, the sky had been {blue|clear}.
- "{It is only a small cloud|It will pass}," said [F], but it {grew and grew|came closer}.
* {Soon|A moment later} it {rained so hard that they could not see the way|thundered and rained}, and they
  were {far from home|wet to the skin}.
- {A flash of light ran across the sky.|The thunder was so loud that the ground shook.|The wind took [F]'s
  hat and carried it away.}
- "{I am scared,|What shall we do?}" said [H].
- "Not under the trees!" called [F]. "{That is dangerous|Come this way}!"
* {They saw a small hut and|[H] found an old barn and they} {ran inside|waited there until it was over|hid
  there from the storm}.
- Inside it was {dry and smelled of hay|dark but dry}.
- They {told each other stories|sang songs} {to forget the thunder|until the thunder went away}.
- [H] shared {a dry scarf|[his] last cookie} with [F].
- They counted the seconds between {the lightning and the thunder|flash and thunder}: {three, then six, then
  ten|first two, then five, then nine}.
* {When the sun came back|After an hour}, {a rainbow stood over the hills, and they walked home happily|the
  air was fresh, and they ran home through the puddles}.
- [H]'s [elder] was {waiting at the door with two towels|very [glad] to see them}.
- At home there was {hot tea|hot chocolate} and {a warm blanket|dry socks}.
- Now they always {look at the sky before they go out|take a coat with them}.

= garden
topics: planting a seed; a garden; growing [flowers]; patience; a small seed
title: The Little Seed
* [Open], [Hh] {planted a tiny seed in the garden|put a small seed into a pot} and {watered it|gave it some
  water}.
- [His] [elder] {had given [him] the seed|had said, "This seed is special."}
- It was {no bigger than a grain of sand|small and brown}.
* [He] waited {one day, two days, three days|for a whole week}, but {nothing happened|there was only brown
  earth}.
- "{Perhaps it is asleep|Maybe it is a stone}," said [F].
- Every morning, [H] ran {to look at it|outside in [his] socks}.
- A bird {came and looked at it, too|wanted to eat it}, but [H] {chased it away|clapped [his] hands}.
- [H] wanted to {dig it up and look|throw it away}, but [F] said, "{Wait a little longer|Growing takes
  time}."
- When it was {cold|windy} at night, [H] put {a glass|a box} over it.
* {Then, one morning,|At last} a {small|tiny} green {leaf|tip} {looked out of the ground|came out of the
  earth}.
- "{It is alive|It is here}!" {cried|called} [H].
- It grew {a little every day|higher and higher}: first two leaves, then four, then {six|eight}.
- [H] gave it {water and kind words|a stick to hold on to}.
* In {summer|the end} it became a {tall|beautiful} [flower], and [H] {was proud of it|was [glad] that [he]
  had waited}.
- {Bees and butterflies came to visit it.|Everyone on the street stopped to look at it.}
- In autumn, [H] {kept the new seeds in a small box|gave one new seed to [F]}.
- "{Good things take time|Waiting was worth it}," said [H].

= rescue
spots: nature
wild: rescued
topics: helping a hurt animal; [a_wild] that needs help; a small [wild]; saving [a_wild]
title: The Little [Wild]
* [Open], [Hh] found {a small|a young} [wild] [inplace] that {was hurt|could not move|was cold and weak}.
- It {looked at [him] with dark eyes|made a soft sound}.
- Its mother was {nowhere to be seen|not there}.
- "{Do not be afraid|I will not hurt you}," {said|whispered} [H].
* [He] {wrapped it in [his] jacket|put it into a box with soft grass} and {asked [F] for help|brought it to
  [F], who knew a lot about animals}.
- On the way, [H] walked {very slowly|as carefully as [he] could}.
- {[F] looked at it and said, "It needs rest and food."|"It needs a warm place," said [F].}
- They gave it {water with a small spoon|something to eat and a soft bed}.
- The first night was {the hardest|long}, and [H] {stayed awake|got up three times}.
- They gave it a name: [Petname].
* {Day by day|After a week} {it became stronger|it got better and began to eat}.
- It began to {play with a ball of paper|look around in the room}.
- [H] {would have liked to keep it forever|loved it very much}.
- "{A wild animal belongs outside|It has to go back}," said [F] {softly|kindly}.
* {When it was well again|At last} they {brought it back and let it go|set it free} [inplace], and it
  {looked back once
  before it was gone|disappeared between the trees}.
- [H] was sad and happy {at the same time|at once}.
- Sometimes, in the {evening|morning}, [he] {sees [a_wild] near the house|finds small tracks near the door},
  and [he] {smiles|thinks of that day}.

= snow
topics: the first snow; a snow day; winter; building a snowman
title: The First Snow
* {One winter morning|One cold morning}, [Hh] {looked out of the window, and everything was white|woke up,
  and the whole world was white}.
- {The roofs and the trees looked like cake with sugar.|It was so quiet that [H] could hear [his] own
  heart.}
- "{Snow! It snowed in the night|Wake up, it has snowed}!" {called|cried} [H].
* [He] {put on a warm coat|took [his] boots and [his] scarf} and {called [F]|ran to [F]'s house}, and they
  {built a big snowman|decided to build a snowman}.
- School was {closed that day|late that day}.
- They rolled {three big balls|the snow into big balls}, and the last one was {so heavy that both had to
  push|almost too heavy}.
- They took {a carrot|a pine cone} for the nose and {two stones|two buttons} for the eyes.
- [F] threw a snowball and hit {[H]'s hat|a window}, and {they laughed|they ran away}.
- Their fingers were {red and cold|cold}, but {nobody wanted to go in|they did not care}.
* {But something was missing, so|Then} [H] gave the snowman {[his] own hat|[his] own [color] scarf}.
- "{Now he will not be cold|Now he looks like a real man}," said [F].
- A robin {came and sat on the snowman's head|sat down on his arm}.
- They called him {Mr. [Sur]|[F2]}.
* In the evening, they {drank hot chocolate and looked at their snowman|waved at him from the warm window}.
- "{Good night|See you tomorrow}!" they called.
- When {spring came|the sun came back}, only {a hat|a carrot and two stones} lay in the {grass|garden}, and
  [H] {said, "See you next year."|kept it for the next winter}.

= nightsky
topics: the stars; a wish; a falling star; the night sky; the moon
title: The Falling Star
* {One clear night|One summer night}, [Hh] and [F] {lay in the grass|sat on the roof} and looked at the
  stars.
- The air was {warm|cool} and smelled of {hay|flowers|the sea}.
- "How many are there?" asked [F]. "{More than all the people in the world|Nobody can count them}," said
  [H].
- They {looked for animals in the sky|drew lines from star to star}, and [F] found {a bear|a swan|a lion}.
* Suddenly {a falling star flew across the sky|a bright light crossed the sky}, and each of them {made a
  wish|wished for something}.
- It was {gone in a second|so fast that they could only say "Oh!"}
- [H] {closed [his] eyes tight|thought hard about it}.
- "{You must not tell anyone|Keep it secret}," said [F].
* [H] {wished for [athing]|wished for a friend who stays forever}, and [F] {would not tell [fhis] wish|kept
  [fhis] wish a secret}.
- {An owl called in the dark.|Somewhere a dog barked.}
- They talked about {far places|the future} until {they grew tired|their eyes were heavy}.
- The moon {came up behind the hill|was round and yellow}.
* {Years later|Many years later} they {met again under the same sky|sat there again} and {found out that
  they had wished the same thing|told each other their wishes}: {to stay friends|that they would always be
  friends}.
- "{So it came true|It worked}," said [H] and {laughed|smiled}.
- Above them, the {old stars|stars} were {shining as they did before|still the same}.

= animals
spots: nature
wild: fable
topics: two animals who become friends; [a_wild] and [a_wild2]; animal friends; [a_wild]
title: The [Wild] and the [Wild2]
* [H] the [wild] and [F] the [wild2] lived [inplace], but they {never spoke to each other|did not like each
  other}.
- {One was too loud, and the other was too quiet.|The [wild] slept long, and the [wild2] got up early.}
- "{What a strange animal|That one is not like me}," {thought|said} the [wild].
* {One day|One cold day} [H] {fell into a deep hole|got stuck in the mud} and {could not get out|called for
  help}.
- {The leaves had covered it.|It had rained all night.}
- [He] {tried to jump, but it was too deep|pulled and pulled, but it was no use}.
- Many animals {walked by, but none of them stopped|heard it, but they were afraid}.
- It was getting {dark|cold}.
* {Only [F] stopped and|Then [F] came and} {brought a long branch|found a strong branch} and {pulled [him]
  out|held it until [H] was free}.
- "{Hold on tight|Do not let go}!" called [F].
- {The branch bent, but it did not break.|It took three tries.}
- "Why did you help me?" asked [H]. "{Because you needed help,|Why not?}" said [F].
* {Since that day|From then on} the [wild] and the [wild2] {are best friends|share their food and their
  home}.
- In winter they {keep each other warm|sleep side by side}.
- The other animals {still wonder about it|are surprised}, but {the two of them only smile|the two friends
  do not care}.
- You do not have to {be the same|look the same} to {be friends|like each other}.

= race
spots: nature
wild: fast
topics: a race; a slow animal that wins; a race between [a_wild] and [a_wild2]; never giving up
title: The Great Race
* [H] the [wild] {was fast and proud|was the fastest animal [inplace]} and laughed at [F] the [wild2], {who
  was slow|who never hurried}.
- "{Do you ever arrive anywhere|A stone is faster than you}," said [H].
- All the other animals {heard it|came to listen}.
* "Let us {run a race|have a race} {to the big tree|to the river|around the hill}," said [F], and {everyone
  laughed|everyone was surprised}.
- {An old owl gave the signal.|"One, two, three, go!" called the owl.}
- [H] was {out of sight in a moment|far ahead after a minute}.
- The sun was {hot|high}, and the way was long.
* [H] ran so far ahead that [he] {lay down for a nap|stopped to eat and play}, but [F] {went on, step by
  step|never stopped}.
- "{I have so much time|There is no hurry}," {said [H] and yawned|thought [H]}.
- [F] {was tired and thirsty|felt every stone under [fhis] feet}, but did not {rest|look back}.
- [F] said to [fhimself], "One step more, and one step more."
* When [H] {woke up|looked up again}, [F] was already {at the goal|there}, and {all the animals
  cheered|everybody cheered for [fhim]}.
- [H] {ran as fast as the wind|jumped up and ran}, but it was too late.
- "{Well done|You have won}," said [H] {quietly|in the end} and {gave [F] a flower|bowed}.
- [H] never {laughed at anyone again|called anyone slow again}.
- {Slow and steady gets there, too.|It is not always the fastest who wins.}

= birds
topics: feeding birds; a hungry bird in winter; a bird at the window; kindness to animals
title: The Bird at the Window
* {One winter day|One cold day}, a small bird {sat at [H]'s window|knocked at [H]'s window with its beak}.
- It was {brown with a red spot|gray and very thin}.
- {The ground was hard and white.|There was snow on every branch.}
* [H] saw that it was {hungry and cold|hungry} and {gave it some crumbs|put some seeds on a plate}.
- First it {flew away|was afraid}, but then {it came back|hunger was stronger}.
- [H] sat {still as a stone|behind the curtain} and watched.
- "{Eat as much as you like|You are welcome here}," said [H].
* The next day it came back {with two friends|with another bird}, and {soon|by [day]} there were
  {ten|twelve|more than ten} of them.
- [F] {built a little wooden house for them|brought a bag of seeds}.
- They gave names to {some of them|the funniest ones}: {one was called [Petname]|[Petname] was the
  smallest}.
- The bread was {almost gone|soon gone}, so [H] {shared [his] own breakfast|went to the market for more}.
* {In spring|When spring came}, {a song woke [H] up: the little bird sat at the window and sang for
  [him]|the birds built a nest near [H]'s window and sang every morning}.
- "{That is their thank you|They have not forgotten you}," said [F].
- [H] opened the window {wide|and listened} and {felt happy|sang along}.
"""
