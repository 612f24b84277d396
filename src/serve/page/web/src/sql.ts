// Names and texts as SQL.

/** The name of a column. */
export function sqlName(name: string): string {
  return /^[a-z_][a-z0-9_]*$/.test(name) ? name : `"${name.replaceAll('"', '""')}"`;
}

/** A text in quotation marks. */
export function sqlText(text: string): string {
  return `'${text.replaceAll("'", "''")}'`;
}

/** The condition for the rows of a question. */
export function ofQuestion(id: string): string {
  return `question_id = ${sqlText(id)}`;
}
