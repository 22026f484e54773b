"""Conjugate gradient on a query's posterior information, preconditioned by Gauss-Seidel.

Letters: n documents, p games.
"""

from __future__ import annotations

import math

from numba import njit

from anmi_ray.rating.likelihood import compiled


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


@compiled
def covariance_root(query, weight, component, root, inverse):
    """(X, log det A) of one query, A⁻¹ = Xᵀ X, X lower triangular [n, n] in the memory of `inverse`.

    weight [p]: what every game adds to the precision of its gap. Without a prior A is singular along each component's
    shift; adding 11ᵀ per component fixes the shift and leaves every centred quantity and every gap inside the component
    as it is. `root`, `inverse`: float64[≥ n²].
    """
    n = len(query.mean)
    a = root[: n * n].reshape(n, n)
    x = inverse[: n * n].reshape(n, n)
    for i in range(n):
        for j in range(i, n):
            a[i, j] = 1.0 if query.precision[i] == 0.0 and component[i] == component[j] else 0.0
        a[i, i] += query.precision[i]
    for p in range(len(query.first)):
        i = query.first[p]
        j = query.second[p]
        a[min(i, j), max(i, j)] -= weight[p]
        a[i, i] += weight[p]
        a[j, j] += weight[p]
    log_det = cholesky(a)
    inverse_lower(a, x)
    return x, log_det


@compiled
def cholesky(a):
    """Factor the upper triangle of `a` [n, n] in place into R, a = Rᵀ R; returns log det a."""
    n = len(a)
    log_det = 0.0
    for block in range(0, n, 4):
        stop = min(block + 4, n)
        for k in range(block, stop):
            row = a[k, k:]
            for above in range(block, k):
                factor = a[above, k]
                earlier = a[above, k:]
                for j in range(n - k):
                    row[j] -= factor * earlier[j]
            log_det += math.log(row[0])
            scale = 1.0 / math.sqrt(row[0])
            for j in range(n - k):
                row[j] *= scale
        for i in range(stop, n):  # only whole blocks have rows below them
            row = a[i, i:]
            r0 = a[block, i:]
            r1 = a[block + 1, i:]
            r2 = a[block + 2, i:]
            r3 = a[block + 3, i:]
            f0 = r0[0]
            f1 = r1[0]
            f2 = r2[0]
            f3 = r3[0]
            for j in range(n - i):
                row[j] -= f0 * r0[j] + f1 * r1[j] + f2 * r2[j] + f3 * r3[j]
    return log_det


@compiled
def inverse_lower(a, x):
    """X = (Rᵀ)⁻¹ into `x` [n, n], zeros above its diagonal, from R in the upper triangle of `a`."""
    n = len(a)
    for i in range(n):
        row = x[i]
        for j in range(n):
            row[j] = 0.0
        whole = i - i % 4
        for k in range(0, whole, 4):
            f0 = a[k, i]
            f1 = a[k + 1, i]
            f2 = a[k + 2, i]
            f3 = a[k + 3, i]
            r0 = x[k]
            r1 = x[k + 1]
            r2 = x[k + 2]
            r3 = x[k + 3]
            for j in range(k + 4):
                row[j] += f0 * r0[j] + f1 * r1[j] + f2 * r2[j] + f3 * r3[j]
        for k in range(whole, i):
            factor = a[k, i]
            earlier = x[k]
            for j in range(k + 1):
                row[j] += factor * earlier[j]
        scale = 1.0 / a[i, i]
        for j in range(i):
            row[j] *= -scale
        row[i] = scale


@compiled
def gap_variances(columns, first, second, variance):
    """Σ_ii + Σ_jj - 2 Σ_ij of every game [p], from the columns of X as rows [n, n], Σ = Xᵀ X."""
    for p in range(len(first)):
        i = min(first[p], second[p])
        j = max(first[p], second[p])
        total = dot(columns[i, i:j], columns[i, i:j])
        for k in range(j, columns.shape[1]):
            d = columns[i, k] - columns[j, k]
            total += d * d
        variance[p] = total


@compiled
def square_sums(x, variance):
    """Σ_jj = Σ_i X_ij² into `variance` [n]."""
    for j in range(len(variance)):
        variance[j] = 0.0
    for i in range(len(variance)):
        row = x[i]
        for j in range(i + 1):
            variance[j] += row[j] * row[j]


@compiled
def covariances(x, a, joint):
    """Σ_aj = Σ_i X_ia X_ij into `joint` [n]."""
    for j in range(len(joint)):
        joint[j] = 0.0
    for i in range(a, len(joint)):
        row = x[i]
        factor = x[i, a]
        for j in range(i + 1):
            joint[j] += factor * row[j]


@compiled
def times_covariance(x, vector, out):
    """Σ vector = Xᵀ (X vector) into `out` [n]."""
    for j in range(len(out)):
        out[j] = 0.0
    for i in range(len(out)):
        row = x[i, : i + 1]
        factor = dot(row, vector[: i + 1])
        for j in range(i + 1):
            out[j] += factor * row[j]
