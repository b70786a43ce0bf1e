// All words of the page. To translate it, replace this file: what is in {braces} is filled in, and ".one" and
// ".other" (and whatever else a language has) are chosen by the number {n}; ".zero" is no number of any; ".own" is on one's own machine.

export const LANGUAGE = "en", OWN = document.documentElement.dataset.own !== undefined;

const TEXTS = {
  "page.title": "Lists that never leave your browser", "page.lead": "Rate what you know. Your list is computed here, from a model that was published. Nothing you rate is sent anywhere.",
  "nav.label": "Parts of this page", "nav.rate": "Rate", "nav.list": "Your list", "nav.rests": "Why", "nav.promise": "Promise",
  "rate.title": "What do you know?", "rate.search": "Search by title", "rate.hint": "To begin with:", "rate.others": "Show others",
  "rate.found.zero": "No title matches.", "rate.found.one": "One title:", "rate.found.other": "{n} titles:", "rate.first": "The first {shown} of {n} titles:",
  "rate.of": "Rate {title}", "rate.value": "{value} of {high}", "rate.pick": "I know it", "rate.remove": "Remove the rating of {title}",
  "mine.title.zero": "Your ratings: none yet", "mine.title.one": "Your ratings: one", "mine.title.other": "Your ratings: {n}",
  "mine.unknown.one": "One of them is of a title that this model does not know; it is kept.", "mine.unknown.other": "{n} of them are of titles that this model does not know; they are kept.",
  "mine.export": "Save to a file", "mine.import": "Load from a file", "mine.clear": "Erase all", "mine.sure": "Erase all your ratings from this browser?",
  "mine.stay": "They are stored in this browser only, until you erase them. Whoever else uses it can see them.", "mine.bad": "This file has no ratings that could be read: expected JSON such as {example}, or lines of item,rating.",
  "mine.scale": "Nothing was loaded: a rating in this file lies outside the scale, {low} to {high}.", "mine.loaded": "Loaded: {n}.", "mine.full": "This browser does not store the ratings; save them to a file before you close the page.",
  "list.title": "Your list", "list.only": "Only", "list.all": "everything", "list.more": "Show more", "list.predicted": "about {value}", "list.new": "This is what anybody would see. Rate a few titles, and it becomes yours.", "list.empty": "Nothing is left to recommend here.",
  "list.changed": "The list has changed. First: {title}.", "list.nothing": "Nothing was learned from others, and the items have no features to go by: this model makes no lists.",
  "rests.title": "What your list rests on", "rests.mine.zero": "On no rating of yours.", "rests.mine.one": "On one rating of yours, and nothing else of you.", "rests.mine.other": "On {n} ratings of yours, and nothing else of you.",
  "rests.same.zero": "Nothing on it would be on a newcomer's list: it is all yours.", "rests.same.one": "One of the first {top} titles would be on a newcomer's list as well.", "rests.same.other": "{n} of the first {top} titles would be on a newcomer's list as well.",
  "rests.often": "You pick {what} {often} times as often as {whom}.", "rests.model": "And on the model, which is the same for everybody:",
  "promise.title": "What was promised to those it was learned from", "promise.plain": "It was learned from {people} people, with noise that limits what anybody can find out about one of them from this model. The limit:",
  "promise.none": "The file promises nothing to anybody.", "promise.open": "This model protects nobody it was learned from. It is for trying things out.",
  "promise.you": "And to you", "promise.here": "Your ratings never leave this browser: the page was loaded whole, and from then on asks for nothing. Switch the network off and go on: all of it still works.",
  "promise.who": "Who hosts this page can see that you have opened it, and could replace it by another. This version of the page has no part that sends.",
  "fact.people": "People", "fact.epsilon": "Epsilon", "fact.delta": "Delta", "fact.trust": "Trust", "fact.items": "Titles", "fact.model": "Model",
  "error.load": "The model could not be loaded. Is the file public.model beside this page?", "error.damaged": "The model file is damaged or was altered, so it is not used.",
  "error.later": "The model file is of a later release than this page.", "error.insecure": "Open this page by https: without it, what it loads could be altered on the way.",
  "page.title.own": "What this machine knows of you", "page.lead.own": "Your ratings, the list that follows from them, and what was spent of your privacy budget. Nothing of this leaves this machine.",
  "mine.stay.own": "They were read from the file on this machine. What you change here is for trying out: it is not stored, and is gone when you close the page.", "mine.sure.own": "Take all ratings off this page? The file keeps them.",
  "promise.here.own": "Your ratings never leave this machine. All that this page has comes from here.", "promise.who.own": "What was computed from them may have left it, hidden in noise: see what was spent.",
  "error.token": "This address was used already, or is another one: each works once, in one tab. Start 'bgtplanner serve' again for a new one.", "error.own": "Your ratings or your ledger cannot be read, or 'bgtplanner serve' has ended. 'bgtplanner ledger verify' says what is wrong with a ledger.",
  "nav.spent": "Spent", "spent.title": "What was spent of your budget", "spent.so.zero": "Nothing: nothing that was computed from your ratings has left this machine. Your budget is epsilon {epsilon} (delta {delta}).",
  "spent.so.other": "Payments so far: {n}, each for something computed from your ratings to leave this machine, hidden in noise. Together they come to epsilon {spent}; the whole budget is epsilon {epsilon} (delta {delta}). Counted in charges, which add up where epsilon does not, {left} of it is left.",
  "spent.means.replace-special": "What that means: somebody who sees all that has left has to guess whether your ratings were used for it at all, and holds both to be equally likely. So far they are right in at most {now} of cases; after the whole budget, in {whole}. Tossing a coin, it is 50%.",
  "spent.means.replace-one": "What that means: somebody who sees all that has left has to guess whether it comes from your ratings or from quite different ones, and holds both to be equally likely. So far they are right in at most {now} of cases; after the whole budget, in {whole}. Tossing a coin, it is 50%.",
  "spent.promise": "The promise is the whole budget. Once it is used up, this machine refuses, whoever asks, and it never fills up again.", "spent.rows": "Payment by payment", "spent.unknown": "Time not noted",
  "spent.reserve": "Training {run}, round {round}: a charge of {charge}. Epsilon so far: {spent}. Left: {left}.", "spent.loss": "Stated as lost with a backup: a charge of {charge}. Epsilon so far: {spent}. Left: {left}.",
  "liked.0": "", "liked.1": "popular", "liked.2": "rated well by those who know it", "liked.3": "liked by many", "interest": "you pick {what} {often} times as often as {whom}", "whom.others": "others", "whom.chance": "chance would",
  "leaning.stars": "you rate {what} {much} stars above your mean", "leaning.points": "you rate {what} {much} points above your mean",
  "new": "nothing of yours is known yet", "like.you": "fits what people like you pick", "because.rated": "because you rated {title} high", "because.picked": "because you picked {title}",
  "class": "items with {column} {part}", "years": "titles from {first} to {last}", "decade.other": "{decade}s", "decade.0": "titles from the early {decade}", "decade.1": "titles from the mid-{decade}", "decade.2": "titles from the late {decade}", "decade.3": "titles from the {decade}",
  "decade.name.1920": "twenties", "decade.name.1930": "thirties", "decade.name.1940": "forties", "decade.name.1950": "fifties", "decade.name.1960": "sixties", "decade.name.1970": "seventies", "decade.name.1980": "eighties", "decade.name.1990": "nineties",
  "verdict.more": "More people or a larger epsilon would be needed for more.", "verdict.more.people": "More people would be needed for more.",
  "verdict.features": "Nothing was learned from others: lists follow the features that a person likes.", "verdict.nothing": "Nothing was learned from others, and items have no features: there are no lists.",
  "verdict.axes.zero": "No axis of taste stands out from the noise.", "verdict.axes.one": "One axis of taste stands out from the noise.", "verdict.axes.other": "{n} axes of taste stand out from the noise.",
  "verdict.well": "Popularity is well known.", "verdict.roughly": "Popularity is roughly known.", "verdict.hardly": "Popularity is barely known.", "verdict.helped": "Public features of the items help ({features}).",
  "verdict.clearly": "Expect lists that are clearly more personal than popularity.", "verdict.somewhat": "Expect lists that are somewhat more personal than popularity.", "verdict.popularity": "Lists will not be better than popularity.",
};
const PLURALS = new Intl.PluralRules(LANGUAGE);

/** The words of this key, with what is in braces filled in. */
export function text(key, values = {}) {
  const { n } = values, one = n === 0 && `${key}.zero` in TEXTS ? "zero" : PLURALS.select(n ?? 0);
  const words = (OWN ? TEXTS[`${key}.own`] : undefined) ?? TEXTS[key] ?? TEXTS[`${key}.${one}`] ?? TEXTS[`${key}.other`] ?? key;
  return words.replace(/\{(\w+)\}/g, (whole, name) => values[name] ?? whole);
}
