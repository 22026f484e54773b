"""Conjugate gradient on a query's posterior information, preconditioned by Gauss-Seidel.

Letters: n documents, p games.
"""

from __future__ import annotations

from numba import njit

from anmi_ray.rating.links import compiled


@njit(cache=True, nogil=True, error_model="numpy", fastmath={"reassoc", "contract"}, no_cfunc_wrapper=True)
def dot(x, y):
    """Σ x_i y_i; the reordering that vectorises it is fixed at compile time, so runs agree."""
    total = 0.0
    for i in range(len(x)):
        total += x[i] * y[i]
    return total


@compiled
def conjugate_gradient(query, rhs, diagonal, forcing, x, work):
    """Solve A x = rhs from zero, A = Laplacian(work.curve) + diag(precision), to a relative residual.

    With A = L + D + U, its triangles and diagonal, the preconditioner is symmetric Gauss-Seidel, (D + L) D⁻¹ (D + U):
    half as many steps as with D alone. Of the residual r and the direction t only ρ = D (D + L)⁻¹ r and
    d = D⁻¹ (D + U) t are kept; then a step is one solution with either triangle, together the multiplications of one
    product A t (Eisenstat 1981, SIAM J. Sci. Stat. Comput. 2(1)).
    Without a prior the system is singular but consistent (rhs sums to zero per component), which the method bears.
    """
    n = len(rhs)
    rho = work.rows[6, :n]
    inverse = work.rows[7, :n]
    z = work.rows[8, :n]
    d = work.rows[9, :n]
    t = work.rows[10, :n]
    image = work.rows[11, :n]
    for i in range(n):
        inverse[i] = 1.0 / diagonal[i] if diagonal[i] > 0.0 else 0.0  # zero: a document whose games weigh nothing
        x[i] = 0.0
        rho[i] = rhs[i]
    for p in range(len(query.first)):
        work.weight[p] = work.curve[p] * inverse[query.first[p]]
    _solve_lower(query, rho, work)
    for i in range(n):
        z[i] = inverse[i] * rho[i]
        d[i] = z[i]
    rz = dot(rho, z)
    goal = forcing * forcing * rz
    for _ in range(4 * n):
        if not rz > max(goal, 0.0):  # solved, or not a number
            break
        for i in range(n):
            t[i] = d[i]
        _solve_upper(query, t, work)
        for i in range(n):
            image[i] = diagonal[i] * (d[i] - t[i])
        _solve_lower(query, image, work)
        for i in range(n):
            image[i] += diagonal[i] * t[i]
        scale = rz / dot(d, image)
        for i in range(n):
            x[i] += scale * t[i]
            rho[i] -= scale * image[i]
            z[i] = inverse[i] * rho[i]
        rz_new = dot(rho, z)
        ratio = rz_new / rz
        for i in range(n):
            d[i] = z[i] + ratio * d[i]
        rz = rz_new


@compiled
def _solve_lower(query, y, work):
    """y := D (D + L)⁻¹ y: a game hands what its lower document has got, which is complete, to the higher one."""
    for p in range(len(query.first)):
        y[query.second[p]] += work.weight[p] * y[query.first[p]]


@compiled
def _solve_upper(query, y, work):
    """y := (D + U)⁻¹ D y."""
    for p in range(len(query.first) - 1, -1, -1):
        y[query.first[p]] += work.weight[p] * y[query.second[p]]
