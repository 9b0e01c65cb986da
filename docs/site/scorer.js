// What readers look for is in guides more often than in internals. The numbers are those of Sphinx.
var Scorer = {
  score: ([page, , , , score, , kind]) => {
    const places = [["docs/start/questions", 20], ["docs/start/", 12], ["docs/guide/", 8], ["docs/troubleshooting", 8],
      ["docs/design/", -4], ["CHANGELOG", -8], ["docs/reference/api", kind === "text" ? -8 : 0]];
    const [, more] = places.find(([start]) => page.startsWith(start)) ?? ["", 0];
    return score + more;
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};

// Sphinx finds only pages with every word. Here a page needs one, and a rare word counts more than a frequent one.
const searchAll = Search.performTermsSearch;
Search.performTermsSearch = (words, excluded) => {
  const found = new Map();
  for (const word of words) {
    const pages = searchAll(new Set([word]), excluded);
    const weight = Math.log2(1 + Search._index.docnames.length / pages.length) / 2;
    for (const page of pages) {
      page[4] = weight * page[4] + (found.get(page[0])?.[4] ?? 0);
      found.set(page[0], page);
    }
  }
  return [...found.values()];
};
