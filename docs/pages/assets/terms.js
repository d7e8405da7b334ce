// The masks to combine as they stand in the address: ?terms=sliding_window.and.not-document.

export const WORDS = { "&": "and", "|": "or", "-": "minus" };
export const MOST = 4;
const NOT = "not-";
const TO_START_WITH = "sliding_window.and.document";

/** {terms, problems} of a text; too few masks, or no text, are the two to start with. */
export function readTerms(text, names) {
  if (!text) return { terms: readTerms(TO_START_WITH, names).terms, problems: [] };
  const parts = text.split(".");
  const problems = parts.length % 2 ? [] : [`nothing follows “${parts.at(-1)}”`];
  const terms = [];
  for (let at = 0; at < parts.length; at += 2) {
    const term = readTerm(parts[at], at ? parts[at - 1] : "and", names, problems);
    if (term) terms.push(term);
  }
  if (terms.length > MOST) problems.push(`no more than ${MOST} masks are combined`);
  if (terms.length > 1) return { terms: terms.slice(0, MOST), problems };
  return { terms: readTerms(TO_START_WITH, names).terms, problems: [...problems, "at least two masks are combined"] };
}

function readTerm(part, word, names, problems) {
  const not = part.startsWith(NOT);
  const name = not ? part.slice(NOT.length) : part;
  const sign = Object.keys(WORDS).find((each) => WORDS[each] === word);
  if (!sign) problems.push(`no operator is called “${word}”, only ${Object.values(WORDS).join(", ")}`);
  if (!names.includes(name)) {
    problems.push(`no mask is called “${name}”`);
    return null;
  }
  return { sign: sign ?? "&", not, mask: names.indexOf(name) };
}

export function writeTerms(terms, names) {
  return terms.map(({ sign, not, mask }, at) => (at ? `.${WORDS[sign]}.` : "") + (not ? NOT : "") + names[mask]).join("");
}
