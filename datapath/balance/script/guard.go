package script

import (
	"slices"
	"strings"

	"go.starlark.net/starlark"
	"go.starlark.net/syntax"
)

// The names of the guards in a program. No text of a script can have them.
const (
	guardWhole  = "whole operand"
	guardTop    = "operand"
	guardNumber = "number"
	guardTimes  = "operator *"
	guardMod    = "operator %"
	guardIn     = "operator in"
)

// What a policy can use: what is not here takes time or memory that no guard bounds, or is of no use.
var (
	functions = strings.Fields("None True False abs all any bool chr dict enumerate fail float hash int len list max min ord print range repr reversed sorted str tuple type zip")
	// Methods of lists, dicts and strings, by what their time depends on: nothing, or the length.
	quickMethods  = strings.Fields("append clear get setdefault")
	linearMethods = strings.Fields("count endswith extend find insert isdigit items keys lower lstrip partition pop removeprefix removesuffix rfind rpartition rsplit rstrip split startswith strip upper values")
	fields        = slices.Concat((*candidate)(nil).AttrNames(), (*flow)(nil).AttrNames(), (*event)(nil).AttrNames())
)

// guard changes a program before it is compiled: operands of what may take long are measured first. It
// refuses what a policy cannot have.
//
// Operands are measured where they are used, because values grow after they were made. These need no
// measuring: literals; fields, which are numbers and short strings; and what operators make of such.
type guard struct{ err error }

func (g *guard) refuse(n syntax.Node, what string) {
	if g.err == nil {
		start, _ := n.Span()
		g.err = syntax.Error{Pos: start, Msg: what}
	}
}

func (g *guard) statements(list []syntax.Stmt) {
	for _, s := range list {
		g.statement(s)
	}
}

func (g *guard) statement(s syntax.Stmt) {
	switch s := s.(type) {
	case *syntax.AssignStmt:
		if s.Op != syntax.EQ {
			g.augmented(s)
			return
		}
		s.LHS, s.RHS = g.expr(s.LHS), g.expr(s.RHS)
	case *syntax.DefStmt:
		g.parameters(s.Params)
		g.name(s.Name)
		g.statements(s.Body)
	case *syntax.ExprStmt:
		s.X = g.expr(s.X)
	case *syntax.ForStmt:
		s.Vars, s.X = g.expr(s.Vars), g.expr(s.X)
		g.statements(s.Body)
	case *syntax.WhileStmt:
		g.refuse(s, "a policy has no while loops: use for")
	case *syntax.IfStmt:
		s.Cond = g.expr(s.Cond)
		g.statements(s.True)
		g.statements(s.False)
	case *syntax.LoadStmt:
		g.refuse(s, "a policy is one file: it has no load")
	case *syntax.ReturnStmt:
		if s.Result != nil {
			s.Result = g.whole(s.Result) // min and max compare what a key function returns
		}
	}
}

// augmented is about x += y. x cannot be measured without having its parts evaluated twice; it grows
// by a bit at most if y is a small number.
func (g *guard) augmented(s *syntax.AssignStmt) {
	if s.Op != syntax.PLUS_EQ && s.Op != syntax.MINUS_EQ {
		g.refuse(s, "of the assignments with an operator a policy has += and -= only")
		return
	}
	s.LHS = g.expr(s.LHS)
	if l, ok := s.RHS.(*syntax.Literal); !ok || l.Token != syntax.FLOAT && l.Token != syntax.INT {
		s.RHS = call(guardNumber, s.RHS, g.expr(s.RHS))
	}
}

func (g *guard) name(id *syntax.Ident) {
	if starlark.Universe.Has(id.Name) && !slices.Contains(functions, id.Name) {
		g.refuse(id, "a policy does not have "+id.Name)
	}
}

func (g *guard) parameters(list []syntax.Expr) {
	for _, p := range list {
		switch p := p.(type) {
		case *syntax.BinaryExpr: // name=value
			p.Y = g.expr(p.Y)
		case *syntax.UnaryExpr:
			g.refuse(p, "functions of a policy have no * and ** parameters")
		}
	}
}

func (g *guard) exprs(list []syntax.Expr, of func(syntax.Expr) syntax.Expr) {
	for i := range list {
		list[i] = of(list[i])
	}
}

// expr guards an expression.
func (g *guard) expr(e syntax.Expr) syntax.Expr {
	switch e := e.(type) {
	case *syntax.Ident:
		g.name(e)
	case *syntax.Literal:
		if s, ok := e.Value.(string); ok && len(s) > maxString {
			g.refuse(e, "the string is too long")
		}
		if e.Token == syntax.BYTES {
			g.refuse(e, "a policy does not have bytes")
		}
	case *syntax.ParenExpr:
		e.X = g.expr(e.X)
	case *syntax.UnaryExpr:
		e.X = g.expr(e.X)
	case *syntax.BinaryExpr:
		return g.binary(e)
	case *syntax.CondExpr:
		e.Cond, e.True, e.False = g.expr(e.Cond), g.expr(e.True), g.expr(e.False)
	case *syntax.ListExpr:
		g.exprs(e.List, g.expr)
	case *syntax.TupleExpr:
		g.exprs(e.List, g.expr)
	case *syntax.DictExpr:
		g.exprs(e.List, g.expr)
	case *syntax.DictEntry:
		e.Key, e.Value = g.whole(e.Key), g.expr(e.Value)
	case *syntax.LambdaExpr:
		g.parameters(e.Params)
		e.Body = g.whole(e.Body)
	case *syntax.Comprehension:
		e.Body = g.expr(e.Body)
		for _, c := range e.Clauses {
			switch c := c.(type) {
			case *syntax.ForClause:
				c.Vars, c.X = g.expr(c.Vars), g.expr(c.X)
			case *syntax.IfClause:
				c.Cond = g.expr(c.Cond)
			}
		}
	case *syntax.IndexExpr:
		e.X, e.Y = g.expr(e.X), g.whole(e.Y) // a dict's key is hashed
	case *syntax.SliceExpr:
		e.X = call(guardTop, e.X, g.expr(e.X))
		for _, part := range []*syntax.Expr{&e.Lo, &e.Hi, &e.Step} {
			if *part != nil {
				*part = g.expr(*part)
			}
		}
	case *syntax.DotExpr:
		e.X = g.expr(e.X)
		switch name := e.Name.Name; {
		case slices.Contains(linearMethods, name):
			e.X = call(guardTop, e.X, e.X)
		case !slices.Contains(quickMethods, name) && !slices.Contains(fields, name):
			g.refuse(e.Name, "a policy has no values with ."+name)
		}
	case *syntax.CallExpr:
		g.call(e)
	}
	return e
}

func (g *guard) call(e *syntax.CallExpr) {
	e.Fn = g.expr(e.Fn)
	for i, a := range e.Args {
		switch a := a.(type) {
		case *syntax.BinaryExpr:
			if a.Op == syntax.EQ { // name=value
				a.Y = g.whole(a.Y)
				continue
			}
		case *syntax.UnaryExpr:
			if a.Op == syntax.STAR || a.Op == syntax.STARSTAR {
				g.refuse(a, "functions of a policy have no * and ** arguments")
				continue
			}
		}
		e.Args[i] = g.whole(a)
	}
}

func (g *guard) binary(e *syntax.BinaryExpr) syntax.Expr {
	switch e.Op {
	case syntax.AND, syntax.OR:
		e.X, e.Y = g.expr(e.X), g.expr(e.Y)
	case syntax.STAR:
		return call(guardTimes, e, g.expr(e.X), g.expr(e.Y))
	case syntax.PERCENT:
		return call(guardMod, e, g.expr(e.X), g.expr(e.Y))
	case syntax.IN:
		return call(guardIn, e, g.expr(e.X), g.expr(e.Y))
	case syntax.NOT_IN:
		return &syntax.UnaryExpr{OpPos: e.OpPos, Op: syntax.NOT, X: call(guardIn, e, g.expr(e.X), g.expr(e.Y))}
	case syntax.EQL, syntax.NEQ, syntax.LT, syntax.GT, syntax.LE, syntax.GE:
		if small(e.X) || small(e.Y) { // the smaller one bounds a comparison
			e.X, e.Y = g.expr(e.X), g.expr(e.Y)
		} else {
			e.X, e.Y = g.whole(e.X), g.expr(e.Y)
		}
	default:
		e.X, e.Y = g.whole(e.X), g.whole(e.Y)
	}
	return e
}

// whole guards an operand that something looks into.
func (g *guard) whole(e syntax.Expr) syntax.Expr {
	if small(e) {
		return g.expr(e)
	}
	return call(guardWhole, e, g.expr(e))
}

// small reports whether the value of an expression needs no measuring; it is called before the
// expression is guarded.
func small(e syntax.Expr) bool { return smallTo(e, 8) }

// smallTo looks down some levels only: small is called at each level.
func smallTo(e syntax.Expr, depth int) bool {
	if depth--; depth < 0 {
		return false
	}
	switch e := e.(type) {
	case *syntax.Literal, *syntax.LambdaExpr:
		return true
	case *syntax.DotExpr:
		return true // a field or a method
	case *syntax.ParenExpr:
		return smallTo(e.X, depth)
	case *syntax.UnaryExpr:
		return e.Op == syntax.NOT || smallTo(e.X, depth)
	case *syntax.BinaryExpr:
		switch e.Op {
		case syntax.EQL, syntax.NEQ, syntax.LT, syntax.GT, syntax.LE, syntax.GE, syntax.IN, syntax.NOT_IN:
			return true
		case syntax.STAR, syntax.PERCENT, syntax.LTLT:
			return false
		}
		return smallTo(e.X, depth) && smallTo(e.Y, depth)
	case *syntax.CondExpr:
		return smallTo(e.True, depth) && smallTo(e.False, depth)
	case *syntax.TupleExpr:
		return !slices.ContainsFunc(e.List, func(e syntax.Expr) bool { return !smallTo(e, depth) })
	}
	return false
}

// call is a call of a guard, at the position of what it stands for.
func call(guard string, at syntax.Node, args ...syntax.Expr) syntax.Expr {
	start, end := at.Span()
	if b, ok := at.(*syntax.BinaryExpr); ok {
		start = b.OpPos
	}
	return &syntax.CallExpr{Fn: &syntax.Ident{NamePos: start, Name: guard}, Lparen: start, Args: args, Rparen: end}
}
