"""First names, with their pronouns, and surnames."""

from demo_model.corpus.words.listed import listed

GIRLS = listed(
    """
    Anna, Mia, Lily, Emma, Clara, Ruby, Nora, Ella, Lucy, Ivy, Hannah, Grace, Alice, Rosa, Maya,
    Zoe, Sara, Julia, Eva, Leah, Amy, Kate, Molly, Daisy, Nina, Tara, Lena, Ada, Iris, Olive,
    Hazel, Stella, Freya, Ingrid, Elsa, Greta, Heidi, Paula, Carmen, Elena, Lucia, Sofia, Marta,
    Bianca, Chiara, Giulia, Yuki, Hana, Aiko, Sakura, Mei, Lin, Priya, Anika, Leila, Amina,
    Fatima, Zara, Yasmin, Noor, Aisha, Zuri, Nala, Imani, Amara, Ines, Pilar, Margot, Celine,
    Amelie, Colette, Odette, Vera, Olga, Katya, Irina, Tanya, Sonia, Petra, Hedda, Astrid, Sigrid,
    Maren, Wilma, Dora, Flora, Cora, Thea, Phoebe, Penny, Polly, Tilly, Winnie, Bella, Gemma,
    Holly, Fern, Willow, Poppy, Violet, Pearl, Opal, June, April, Martha, Edith, Agnes, Beatrice,
    Matilda
    """
)
BOYS = listed(
    """
    Tom, Ben, Sam, Max, Leo, Jack, Noah, Finn, Oscar, Hugo, Adam, Paul, Peter, Mark, Luke, John,
    Henry, Arthur, George, Harry, Toby, Felix, Simon, Martin, Daniel, David, Jonas, Lukas, Emil,
    Anton, Otto, Karl, Kurt, Hans, Erik, Lars, Nils, Sven, Olaf, Bjorn, Pablo, Diego, Carlos,
    Luis, Marco, Paolo, Enzo, Dario, Mateo, Rafael, Kenji, Hiro, Taro, Ryo, Wei, Jun, Arjun, Ravi,
    Dev, Rohan, Omar, Ali, Karim, Hassan, Yusuf, Tariq, Samir, Kofi, Kwame, Jabari, Tunde, Amir,
    Louis, Pierre, Remy, Gaston, Yves, Ivan, Boris, Dmitri, Pavel, Milan, Viktor, Andrei, Stefan,
    Jakob, Walter, Victor, Edgar, Alfred, Fred, Frank, Gus, Ned, Ted, Rory, Callum, Owen, Dylan,
    Rhys, Ewan, Angus, Robin, Jasper, Silas, Theo, Milo, Eli, Ezra, Caleb, Isaac, Abel, Miles,
    Basil
    """
)
SURNAMES = listed(
    """
    Smith, Brown, Miller, Taylor, Baker, Cooper, Fisher, Carter, Turner, Parker, Hunter, Mason,
    Walker, Wright, Cook, Hill, Green, White, Black, Gray, Young, King, Wood, Stone, Field, Brook,
    Lake, Rivers, Woods, Marsh, Ford, Lane, Banks, Burns, Price, Reed, Rose, Snow, Winter, Frost,
    Day, Knight, Bell, Bird, Fox, Wolf, Swan, Drake, Finch, Martin, Garcia, Lopez, Perez, Romero,
    Torres, Silva, Costa, Santos, Rossi, Bianchi, Ricci, Moretti, Weber, Schmidt, Fischer, Wagner,
    Becker, Hoffmann, Keller, Vogel, Berger, Jansen, Visser, Bakker, Dekker, Larsen, Hansen,
    Nielsen, Berg, Lund, Dahl, Holm, Nowak, Kowalski, Novak, Horvat, Petrov, Ivanov, Orlov,
    Tanaka, Sato, Suzuki, Mori, Kim, Park, Choi, Chen, Wang, Zhou, Singh, Patel, Sharma, Khan,
    Haddad, Nasser, Mensah, Okoro, Diallo, Mbeki, Dubois, Laurent, Moreau, Girard
    """
)
